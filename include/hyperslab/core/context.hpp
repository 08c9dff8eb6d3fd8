// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/ledger.hpp"
#include "hyperslab/core/machine.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/core/stream.hpp"

namespace hyperslab {

/// Something in progress that proceeds only while the host calls it, as MPI's nonblocking calls do.
class Background {
 public:
  Background() = default;
  virtual ~Background() = default;
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  Background(Background&&) = delete;
  Background& operator=(Background&&) = delete;
  /// Never blocks.
  virtual void progress() = 0;
};

class Context;

/// Sees the operands of y = x weight^T before the product is enqueued, for those who study inputs.
class ProductObserver {
 public:
  ProductObserver() = default;
  virtual ~ProductObserver() = default;
  ProductObserver(const ProductObserver&) = delete;
  ProductObserver& operator=(const ProductObserver&) = delete;
  ProductObserver(ProductObserver&&) = delete;
  ProductObserver& operator=(ProductObserver&&) = delete;
  virtual void product(Context& ctx, CView x, CView weight) = 0;
};

/// An op takes a context besides its views: device, streams, workspace, ledger, recorder. One per
/// rank, made by the composition root and passed down; there are no globals.
class Context {
 public:
  /// `workspace_bytes` is the largest need of any op that the plan on `meta` found. On `cuda`
  /// it makes a compute stream on the GPU in use.
  explicit Context(Device device, std::size_t workspace_bytes = 0);
  /// A context on `meta` that plans for `planned`: workspaces are those that its ops will need.
  Context(Device device, std::size_t workspace_bytes, Device planned);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Context(Context&&) = delete;
  Context& operator=(Context&&) = delete;
  ~Context() = default;

  [[nodiscard]] Device device() const { return device_; }
  /// The device that the numbers of a plan are for; `device()` if nothing is planned.
  [[nodiscard]] Device planned() const { return planned_; }
  /// The compute stream, on which ops enqueue. On the CPU their work is done when they return.
  [[nodiscard]] Stream& stream() { return *current_; }
  /// For copies beside computation (see copy_async); made at the first call. On the CPU a thread
  /// copies.
  [[nodiscard]] Stream& copy_stream();
  /// Enqueues `work` beside all work enqueued on the compute stream after this call, on a stream
  /// made at the first one, and after all work enqueued there so far. Readers of its results wait
  /// for the event. Without a GPU the work is done at once. Only kernels of our own that
  /// take no workspace, and collectives: libraries and the recorder keep the compute stream.
  template <class Work>
  [[nodiscard]] Event run_beside(Work&& work) {
    if (device_ != Device::cuda) {
      stream_.set_beside(true);
      work();
      stream_.set_beside(false);
      return {};
    }
    if (!side_stream_) side_stream_ = std::make_unique<Stream>(device_);
    side_stream_->wait(stream_.record());
    {
      const Beside beside(*this);
      work();
    }
    return side_stream_->record();
  }
  [[nodiscard]] Recorder& recorder() { return recorder_; }
  [[nodiscard]] Ledger& ledger() { return ledger_; }
  /// Threads that CPU ops use; fixed for the life of the context.
  [[nodiscard]] int threads() const { return threads_; }

  /// Products of f32 operands on a GPU may round them to TF32 (10 bits of mantissa). Off by
  /// default.
  void set_tf32(bool tf32) { tf32_ = tf32; }
  [[nodiscard]] bool tf32() const { return tf32_; }
  /// Makes equal calls give equal bits in every run: no algorithm is chosen by its time, and none
  /// adds in a changing order. Set before the first op.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }
  [[nodiscard]] bool deterministic() const { return deterministic_; }
  /// A promise that no parameter changes from now on, nor is dequantized to a buffer, as in most
  /// generation: a kernel may read weights while kernels enqueued before it still run. All that
  /// wrote them must have ended. Off by default.
  void set_fixed_parameters(bool fixed) { fixed_parameters_ = fixed; }
  [[nodiscard]] bool fixed_parameters() const { return fixed_parameters_; }

  /// The machine that decides how work is cut; unless set, one of which nothing is known.
  void set_machine(const Machine& machine) { machine_ = machine; }
  [[nodiscard]] const Machine& machine() const { return machine_; }

  /// Its progress() is called at the start of every op on the CPU, by the thread that calls the op;
  /// null: none. It must outlive the context's last op.
  void set_background(Background* background) { background_ = background; }
  /// Ops call it; costs nothing if nothing is in progress.
  void progress() {
    if (background_ != nullptr) background_->progress();
  }

  /// Sees every linear layer's product; null: none. It must outlive the context's last op.
  void set_product_observer(ProductObserver* observer) { product_observer_ = observer; }
  [[nodiscard]] ProductObserver* product_observer() const { return product_observer_; }

  /// State that the ops of a device keep between calls (library handles, chosen algorithms); made
  /// at the first use, destroyed before the streams. For ops alone.
  [[nodiscard]] std::shared_ptr<void>& backend() { return backend_; }

  /// Scratch memory for the op `op`, valid until the next call. On `meta` it only raises
  /// `workspace_high_water()`; on a device it throws an internal Error beyond the planned size.
  void* workspace(std::string_view op, std::size_t bytes);
  [[nodiscard]] std::size_t workspace_high_water() const { return workspace_high_water_; }
  /// Scratch memory like workspace(), but valid until free_partials(): sums that several ops leave
  /// for one kernel to add up. Later work may overwrite memory that workspace() gave before.
  void* partials(std::string_view op, std::size_t bytes);
  /// Work that is enqueued after this call may write to that memory.
  void free_partials() { partial_bytes_ = 0; }
  /// With true, gradients of parameters that ops sum in parts wait for finish_sums(): see
  /// ops::with_deferred_reductions.
  void set_deferred_reductions(bool late) { deferred_reductions_ = late; }
  [[nodiscard]] bool deferred_reductions() const { return deferred_reductions_; }

  /// Adds an op's work to the ledger under the recorder's component. Ops call it on `meta` only.
  /// `path`: which of its ways the op takes on the planned device, if it has several.
  void add_work(std::string_view op, double flops, double bytes, std::string_view path = {});

 private:
  /// While it lives, ops enqueue on the side stream.
  class Beside {
   public:
    explicit Beside(Context& ctx) : ctx_(ctx) { ctx_.current_ = ctx_.side_stream_.get(); }
    ~Beside() { ctx_.current_ = &ctx_.stream_; }
    Beside(const Beside&) = delete;
    Beside& operator=(const Beside&) = delete;
    Beside(Beside&&) = delete;
    Beside& operator=(Beside&&) = delete;

   private:
    Context& ctx_;
  };

  Device device_;
  Device planned_;
  Machine machine_;
  bool tf32_ = false;
  bool deterministic_ = false;
  bool fixed_parameters_ = false;
  Stream stream_;
  std::unique_ptr<Stream> copy_stream_;
  std::unique_ptr<Stream> side_stream_;
  Stream* current_ = &stream_;
  Recorder recorder_;
  Ledger ledger_;
  Buffer workspace_;
  std::size_t workspace_high_water_ = 0;
  std::size_t partial_bytes_ = 0;  ///< at the end of the workspace
  bool deferred_reductions_ = false;
  int threads_ = 1;
  Background* background_ = nullptr;
  ProductObserver* product_observer_ = nullptr;
  std::shared_ptr<void> backend_;
};

}  // namespace hyperslab
