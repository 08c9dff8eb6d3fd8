// SPDX-License-Identifier: Apache-2.0
#include "gpu_jpeg.hpp"

#ifdef HYPERSLAB_NVJPEG
#include <dlfcn.h>
#include <fmt/format.h>
#include <nvjpeg.h>

#include <utility>
#include <vector>
#endif

namespace hyperslab::train {

#ifdef HYPERSLAB_NVJPEG

/// The functions of nvJPEG in use, and its objects.
struct GpuJpeg::Library {
  void* opened = nullptr;
  decltype(&nvjpegCreateEx) create = nullptr;
  decltype(&nvjpegDestroy) destroy = nullptr;
  decltype(&nvjpegJpegStateCreate) create_state = nullptr;
  decltype(&nvjpegJpegStateDestroy) destroy_state = nullptr;
  decltype(&nvjpegDecodeBatchedInitialize) initialize = nullptr;
  decltype(&nvjpegDecodeBatched) decode = nullptr;
  decltype(&nvjpegGetHardwareDecoderInfo) engines = nullptr;
  nvjpegHandle_t handle = nullptr;
  nvjpegJpegState_t state = nullptr;
  int backend = NVJPEG_BACKEND_HARDWARE;
  int batch = 0;  ///< that the state is initialized for
  std::vector<const unsigned char*> data;
  std::vector<std::size_t> lengths;
  std::vector<nvjpegImage_t> destinations;

  [[nodiscard]] bool open() {
    for (const char* name : {"libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so"}) {
      opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (opened != nullptr) break;
    }
    return opened != nullptr && find("nvjpegCreateEx", create) && find("nvjpegDestroy", destroy) &&
           find("nvjpegJpegStateCreate", create_state) &&
           find("nvjpegJpegStateDestroy", destroy_state) &&
           find("nvjpegDecodeBatchedInitialize", initialize) &&
           find("nvjpegDecodeBatched", decode) && find("nvjpegGetHardwareDecoderInfo", engines);
  }
  void close_handle() {
    if (state != nullptr) (void)destroy_state(std::exchange(state, nullptr));
    if (handle != nullptr) (void)destroy(std::exchange(handle, nullptr));
  }

 private:
  template <class Function>
  [[nodiscard]] bool find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(opened, name));
    return function != nullptr;
  }
};

GpuJpeg::GpuJpeg(std::unique_ptr<Library> library) : library_(std::move(library)) {}

GpuJpeg::~GpuJpeg() {
  library_->close_handle();
  if (library_->opened != nullptr) (void)dlclose(library_->opened);
}

bool GpuJpeg::make_handle(int backend) {
  Library& nv = *library_;
  nv.backend = backend;
  const bool made = nv.create(static_cast<nvjpegBackend_t>(backend), nullptr, nullptr,
                              NVJPEG_FLAGS_DEFAULT, &nv.handle) == NVJPEG_STATUS_SUCCESS &&
                    nv.create_state(nv.handle, &nv.state) == NVJPEG_STATUS_SUCCESS;
  if (!made) nv.close_handle();
  return made;
}

std::unique_ptr<GpuJpeg> GpuJpeg::open(std::string& why) {
  std::unique_ptr<GpuJpeg> decoder(new GpuJpeg(std::make_unique<Library>()));
  Library& nv = *decoder->library_;
  if (!nv.open()) {
    why = "libnvjpeg was not found: install a CUDA toolkit with it or the package nvidia-nvjpeg";
    return nullptr;
  }
  if (decoder->make_handle(NVJPEG_BACKEND_HARDWARE)) {
    unsigned engines = 0;
    unsigned cores = 0;
    (void)nv.engines(nv.handle, &engines, &cores);
    decoder->description_ = fmt::format("nvJPEG, {} engines of {} cores", engines, cores);
    return decoder;
  }
  if (decoder->make_handle(NVJPEG_BACKEND_GPU_HYBRID)) {
    decoder->description_ = "nvJPEG, kernels";
    return decoder;
  }
  why = "nvJPEG refuses this GPU";
  return nullptr;
}

bool GpuJpeg::decode(std::span<const Image> images, const Stream& stream) {
  if (images.empty()) return true;
  Library& nv = *library_;
  nv.data.clear();
  nv.lengths.clear();
  nv.destinations.assign(images.size(), nvjpegImage_t{});
  for (std::size_t i = 0; i < images.size(); ++i) {
    nv.data.push_back(reinterpret_cast<const unsigned char*>(images[i].bytes.data()));
    nv.lengths.push_back(images[i].bytes.size());
    nv.destinations[i].channel[0] = images[i].rgb;
    nv.destinations[i].pitch[0] = static_cast<std::size_t>(images[i].width) * 3;
  }
  const int batch = static_cast<int>(images.size());
  if (nv.batch == 0) {
    nv.close_handle();
    if (!make_handle(nv.backend)) return false;
  }
  if (nv.batch != batch &&
      nv.initialize(nv.handle, nv.state, batch, 1, NVJPEG_OUTPUT_RGBI) != NVJPEG_STATUS_SUCCESS) {
    return false;
  }
  nv.batch = batch;
  if (nv.decode(nv.handle, nv.state, nv.data.data(), nv.lengths.data(), nv.destinations.data(),
                stream.cuda()) == NVJPEG_STATUS_SUCCESS) {
    return true;
  }
  nv.batch = 0;  // the state is unusable after a failure
  return false;
}

#else

struct GpuJpeg::Library {};
GpuJpeg::GpuJpeg(std::unique_ptr<Library> library) : library_(std::move(library)) {}
GpuJpeg::~GpuJpeg() = default;
bool GpuJpeg::make_handle(int /*backend*/) { return false; }
std::unique_ptr<GpuJpeg> GpuJpeg::open(std::string& why) {
  why = "this program was built without the headers of nvJPEG";
  return nullptr;
}
bool GpuJpeg::decode(std::span<const Image> /*images*/, const Stream& /*stream*/) { return false; }

#endif

}  // namespace hyperslab::train
