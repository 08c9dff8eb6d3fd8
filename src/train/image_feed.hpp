// SPDX-License-Identifier: Apache-2.0
// Images on their way from files to patches on a GPU.
#pragma once

#include <array>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "gpu_jpeg.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/io/image_samples.hpp"
#include "hyperslab/train/batch_feed.hpp"

namespace hyperslab::train {

/// A feed for stages of a GPU that read patches. A thread prepares the next microbatches in a ring
/// of the GPU's memory, on a stream of its own beside the training step: it decodes (by nvJPEG, or
/// by threads of the CPU into pinned memory that is copied) and augments. load() waits on the
/// stream of the step, and copies.
class ImageFeed final : public BatchFeed {
 public:
  /// `like`: views of the GPU.
  ImageFeed(const Batch& like, const FeedOptions& options);
  ~ImageFeed() override;
  ImageFeed(const ImageFeed&) = delete;
  ImageFeed& operator=(const ImageFeed&) = delete;
  ImageFeed(ImageFeed&&) = delete;
  ImageFeed& operator=(ImageFeed&&) = delete;

  void load(Context& ctx, io::Loader& loader, std::int64_t step, int microbatch,
            const Batch& destination) override;
  void load(Context& ctx, const Part& part, const Batch& destination) override;
  void release() override;

 private:
  /// A microbatch to prepare, and its successors.
  struct Request {
    const io::Samples* samples = nullptr;  ///< null: none
    io::Loader* loader = nullptr;          ///< null: of an evaluation
    std::int64_t step = 0;                 ///< step of a loader, with `microbatch`
    int microbatch = 0;
    std::int64_t first = 0;  ///< in the order of the samples
    std::int64_t end = io::kNoEnd;
    std::int64_t stride = 0;  ///< samples from one part of an evaluation to the next
    [[nodiscard]] bool is(const Request& other) const {
      return samples == other.samples && loader == other.loader && first == other.first &&
             end == other.end && step == other.step;
    }
  };
  struct Slot;
  void take(Context& ctx, const Request& request, const Batch& destination);
  [[nodiscard]] Request after(const Request& request) const;
  void start_over(std::unique_lock<std::mutex>& lock, const Request& request);
  void run();
  void prepare(const Request& request, Slot& slot);
  void fill(const Request& request, const io::ImageSamples& samples, Slot& slot);
  /// Brings encoded images to the GPU and has it decode them. False if it refuses one.
  [[nodiscard]] bool decode_by_gpu(const io::ImageSamples& samples,
                                   std::span<const io::ImageItem> items, Slot& slot,
                                   std::span<const std::size_t> offsets, std::size_t host_bytes);
  void decode_refused(const io::ImageSamples& samples, std::span<io::ImageItem> items, Slot& slot,
                      std::span<const std::size_t> offsets, std::size_t host_bytes);
  /// True if the GPU decodes this one.
  [[nodiscard]] bool on_gpu(const io::ImageSamples& samples, const io::ImageItem& item) const;

  Batch like_;
  FeedOptions options_;
  int device_ = 0;
  std::unique_ptr<Context> ctx_;  ///< context of the thread
  std::unique_ptr<GpuJpeg> jpeg_;
  std::string no_jpeg_;  ///< why there is none
  std::vector<std::unique_ptr<Slot>> ring_;

  std::mutex mutex_;  // guards everything below
  std::condition_variable asked_;
  std::condition_variable made_;
  Request next_;           ///< that the thread prepares; none: it sleeps
  Request head_request_;   ///< request of the slot at head_
  std::size_t head_ = 0;   ///< the oldest that was not taken
  std::size_t ready_ = 0;  ///< prepared, not taken
  bool busy_ = false;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace hyperslab::train
