// SPDX-License-Identifier: Apache-2.0
#include "image_feed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "batch_views.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/round_up.hpp"
#include "hyperslab/core/stream_priority.hpp"

namespace hyperslab::train {
namespace {

constexpr std::size_t kSlots = 3;
constexpr std::size_t kImageAlignment = 256;

View bytes_view(void* data, Device device, std::size_t bytes) {
  return {data, DType::u8, device, {static_cast<Dim>(bytes)}};
}

/// Memory that grows in steps and never shrinks.
template <class Memory>
void grow(Memory& memory, Device device, std::size_t bytes) {
  if (memory.bytes() < bytes) memory = Memory(device, bytes + bytes / 4);
}

}  // namespace

/// A microbatch in the ring. `host` and `device` hold the same: sources, augmentations, and the
/// views of the batch but for the patches.
struct ImageFeed::Slot {
  explicit Slot(const Batch& like) : B(like.patches.shape()[0]) {
    const auto take = [this](std::size_t bytes) {
      return std::exchange(small_bytes, small_bytes + round_up(bytes, kImageAlignment));
    };
    const auto items = static_cast<std::size_t>(B);
    // Every image may have a partner from outside the microbatch.
    sources_at = take(2 * items * sizeof(ops::SourceImage));
    augmentations_at = take(2 * items * sizeof(ops::ImageAugmentation));
    labels_at = take(items * 2 * sizeof(std::int32_t));
    weights_at = take(items * sizeof(float));
    position_at = take(items * sizeof(std::int64_t));
    host = PinnedBuffer(Device::cuda, small_bytes);
    device = Buffer(Device::cuda, small_bytes);
    patches = Buffer(Device::cuda, like.patches.bytes());
    batch = views(device.data(), Device::cuda);
    batch.patches = View(patches.data(), like.patches.dtype(), Device::cuda, like.patches.shape());
  }
  [[nodiscard]] Batch views(void* at, Device where) const {
    auto* bytes = static_cast<std::byte*>(at);
    Batch out;
    out.labels = View(bytes + labels_at, DType::i32, where, {B, 2});
    out.label_weights = View(bytes + weights_at, DType::f32, where, {B});
    out.sample_position = View(bytes + position_at, DType::i64, where, {B});
    return out;
  }
  template <class T>
  [[nodiscard]] std::span<T> in_host(std::size_t at) const {
    return {reinterpret_cast<T*>(static_cast<std::byte*>(host.data()) + at), images};
  }
  [[nodiscard]] std::uint8_t* pixel(std::size_t offset) const {
    return static_cast<std::uint8_t*>(pixels.data()) + offset;
  }

  Dim B;
  std::size_t images = 0;  ///< and partners from outside; at most 2 B
  std::size_t sources_at = 0, augmentations_at = 0, labels_at = 0, weights_at = 0, position_at = 0;
  std::size_t small_bytes = 0;
  PinnedBuffer host;
  Buffer device;
  Buffer patches;
  Buffer pixels;              ///< decoded images
  PinnedBuffer host_pixels;   ///< those that the CPU decodes
  PinnedBuffer host_encoded;  ///< files of those that the GPU decodes
  Buffer scratch;             ///< working memory of the augmentation
  Batch batch;
  Event made;   ///< on the feed's stream
  Event taken;  ///< on the step's stream
};

ImageFeed::ImageFeed(const Batch& like, const FeedOptions& options)
    : like_(like), options_(options), device_(current_cuda_device()) {
  thread_ = std::thread([this] { run(); });
}

ImageFeed::~ImageFeed() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  asked_.notify_one();
  thread_.join();
}

void ImageFeed::load(Context& ctx, io::Loader& loader, std::int64_t step, int microbatch,
                     const Batch& destination) {
  Request request;
  request.samples = &loader.samples();
  request.loader = &loader;
  request.step = step;
  request.microbatch = microbatch;
  request.first = loader.first_sample(step, microbatch, like_.patches.shape()[0]);
  take(ctx, request, destination);
}

void ImageFeed::load(Context& ctx, const Part& part, const Batch& destination) {
  Request request;
  request.samples = &part.samples;
  request.first = part.first;
  request.end = part.end;
  request.stride = part.stride;
  Batch without_position = destination;
  without_position.sample_position = View();
  take(ctx, request, without_position);
}

void ImageFeed::release() {
  std::unique_lock lock(mutex_);
  start_over(lock, {});
}

ImageFeed::Request ImageFeed::after(const Request& request) const {
  Request next = request;
  if (request.loader == nullptr) {
    next.first += request.stride;
    if (request.stride <= 0 || next.first >= request.end) next.samples = nullptr;
    return next;
  }
  next.microbatch = (request.microbatch + 1) % options_.microbatches;
  if (next.microbatch == 0) ++next.step;
  next.first = request.loader->first_sample(next.step, next.microbatch, like_.patches.shape()[0]);
  return next;
}

/// Prepares from `request` on. Microbatches prepared and not taken are dropped.
void ImageFeed::start_over(std::unique_lock<std::mutex>& lock, const Request& request) {
  next_.samples = nullptr;  // so that the thread begins nothing after its present work
  made_.wait(lock, [this] { return !busy_; });
  ready_ = 0;
  error_ = nullptr;
  next_ = head_request_ = request;
  if (request.samples != nullptr) asked_.notify_one();
}

void ImageFeed::take(Context& ctx, const Request& request, const Batch& destination) {
  std::unique_lock lock(mutex_);
  if (!head_request_.is(request)) start_over(lock, request);
  made_.wait(lock, [this] { return ready_ > 0 || error_ != nullptr; });
  if (ready_ == 0) {
    head_request_.samples = nullptr;
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  Slot& slot = *ring_[head_];
  ctx.stream().wait(slot.made);
  copy_batch(ctx, slot.batch, destination);
  slot.taken = ctx.stream().record();
  head_ = (head_ + 1) % kSlots;
  head_request_ = after(request);
  --ready_;
  lock.unlock();
  asked_.notify_one();
}

void ImageFeed::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] {
      return stop_ || (next_.samples != nullptr && ready_ < kSlots && error_ == nullptr);
    });
    if (stop_) return;
    const Request request = next_;
    const std::size_t at = (head_ + ready_) % kSlots;
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      fault::reach("step.load");
      if (!ctx_) {
        use_cuda_device(device_);
        prefer_streams_of_this_thread();
        ctx_ = std::make_unique<Context>(Device::cuda);
        jpeg_ = GpuJpeg::open(no_jpeg_);
        for (std::size_t i = 0; i < kSlots; ++i) ring_.push_back(std::make_unique<Slot>(like_));
      }
      prepare(request, *ring_[at]);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    if (error == nullptr) {
      ++ready_;
      if (next_.samples != nullptr) next_ = after(request);
    }
    error_ = std::move(error);
    made_.notify_one();
  }
}

void ImageFeed::prepare(const Request& request, Slot& slot) {
  slot.made.wait();  // the host's memory was copied
  ctx_->stream().wait(slot.taken);
  const auto* samples = dynamic_cast<const io::ImageSamples*>(request.samples);
  if (samples == nullptr) throw Error(ExitCode::internal, "patches of samples that are no images");
  fill(request, *samples, slot);
  const auto bytes = static_cast<Dim>(slot.small_bytes);
  const auto view = [&](std::size_t at, std::size_t item_bytes) {
    return bytes_view(static_cast<std::byte*>(slot.device.data()) + at, Device::cuda,
                      item_bytes * slot.images);
  };
  copy(ctx_->stream(), CView(slot.host.data(), DType::u8, Device::cpu, {bytes}),
       bytes_view(slot.device.data(), Device::cuda, slot.small_bytes));
  const ops::ImageOutput output = samples->output();
  grow(slot.scratch, Device::cuda,
       ops::augment_scratch_bytes(static_cast<Dim>(slot.images), output));
  ops::augment_images(*ctx_, view(slot.sources_at, sizeof(ops::SourceImage)),
                      view(slot.augmentations_at, sizeof(ops::ImageAugmentation)), output,
                      bytes_view(slot.scratch.data(), Device::cuda, slot.scratch.bytes()),
                      slot.batch.patches);
  slot.made = ctx_->stream().record();
}

bool ImageFeed::on_gpu(const io::ImageSamples& samples, const io::ImageItem& item) const {
  const io::DecodeOn decode = samples.options().decode;
  if (decode == io::DecodeOn::gpu && !jpeg_) {
    throw Error(ExitCode::device,
                "data.decode is gpu, but " + no_jpeg_ + "; or set data.decode to auto or cpu");
  }
  return decode == io::DecodeOn::gpu && item.header.decodes_on_gpu;
}

/// Enqueues the copies of pixels to the GPU, and fills the host's memory of the slot.
void ImageFeed::fill(const Request& request, const io::ImageSamples& samples, Slot& slot) {
  std::vector<io::ImageItem> items =
      samples.items(request.first, request.end, slot.B,
                    [&](const io::ImageItem& item) { return on_gpu(samples, item); });
  slot.images = items.size();
  // Images that the CPU decodes lie in front, as in the memory that is copied.
  std::vector<std::size_t> offsets(items.size(), 0);
  std::size_t bytes = 0;
  std::size_t host_bytes = 0;
  for (const bool gpu : {false, true}) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if ((items[i].counts() && on_gpu(samples, items[i])) != gpu) continue;
      offsets[i] = std::exchange(bytes, bytes + round_up(items[i].bytes(), kImageAlignment));
    }
    if (!gpu) host_bytes = bytes;
  }
  grow(slot.pixels, Device::cuda, bytes);
  grow(slot.host_pixels, Device::cuda, host_bytes);
  const bool decoded = decode_by_gpu(samples, items, slot, offsets, host_bytes);
  samples.decode(items, [&](std::size_t i) -> std::uint8_t* {
    if (offsets[i] >= host_bytes) return nullptr;
    return static_cast<std::uint8_t*>(slot.host_pixels.data()) + offsets[i];
  });
  if (host_bytes > 0) {
    copy(ctx_->stream(), bytes_view(slot.host_pixels.data(), Device::cpu, host_bytes),
         bytes_view(slot.pixels.data(), Device::cuda, host_bytes));
  }
  if (!decoded) decode_refused(samples, items, slot, offsets, host_bytes);
  const Batch host = slot.views(slot.host.data(), Device::cpu);
  samples.finish(items, slot.in_host<ops::ImageAugmentation>(slot.augmentations_at), host.labels,
                 host.label_weights);
  const auto sources = slot.in_host<ops::SourceImage>(slot.sources_at);
  for (std::size_t i = 0; i < items.size(); ++i) {
    sources[i] = {slot.pixel(offsets[i]), items[i].decoded.width, items[i].decoded.height,
                  std::int64_t{3} * items[i].decoded.width};
  }
  const auto positions = host.sample_position.span<std::int64_t>();
  const std::int64_t first =
      request.loader == nullptr ? 0 : request.loader->position_of(request.microbatch, slot.B);
  std::iota(positions.begin(), positions.end(), first);
}

bool ImageFeed::decode_by_gpu(const io::ImageSamples& samples, std::span<const io::ImageItem> items,
                              Slot& slot, std::span<const std::size_t> offsets,
                              std::size_t host_bytes) {
  std::vector<std::size_t> which;
  std::size_t encoded = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (offsets[i] < host_bytes) continue;
    which.push_back(i);
    encoded += round_up(samples.set().bytes(items[i].image).size(), std::size_t{64});
  }
  if (which.empty()) return true;
  grow(slot.host_encoded, Device::cuda, encoded);
  std::vector<GpuJpeg::Image> images;
  auto* at = static_cast<std::byte*>(slot.host_encoded.data());
  for (const std::size_t i : which) {
    const auto bytes = samples.set().bytes(items[i].image);
    std::memcpy(at, bytes.data(), bytes.size());
    images.push_back({{at, bytes.size()}, slot.pixel(offsets[i]), items[i].decoded.width});
    at += round_up(bytes.size(), std::size_t{64});
  }
  return jpeg_->decode(images, ctx_->stream());
}

/// One of the images is damaged, or of a kind that the engine refuses: the CPU finds out which.
void ImageFeed::decode_refused(const io::ImageSamples& samples, std::span<io::ImageItem> items,
                               Slot& slot, std::span<const std::size_t> offsets,
                               std::size_t host_bytes) {
  ctx_->stream().record().wait();  // nothing of the refused batch is written later
  std::size_t most = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (offsets[i] >= host_bytes) most = std::max(most, offsets[i] + items[i].bytes());
  }
  grow(slot.host_pixels, Device::cuda, most);
  auto* const pixels = static_cast<std::uint8_t*>(slot.host_pixels.data());
  samples.decode(items, [&](std::size_t i) -> std::uint8_t* {
    return offsets[i] < host_bytes ? nullptr : pixels + offsets[i];
  });
  copy(ctx_->stream(), bytes_view(pixels + host_bytes, Device::cpu, most - host_bytes),
       bytes_view(slot.pixel(host_bytes), Device::cuda, most - host_bytes));
}

}  // namespace hyperslab::train
