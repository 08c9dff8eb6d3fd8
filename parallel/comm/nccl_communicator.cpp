// SPDX-License-Identifier: Apache-2.0
#include "nccl_communicator.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/machine.hpp"
#include "hyperslab/core/transfer.hpp"
#include "mpi_check.hpp"
#include "nccl.hpp"
#include "nccl_check.hpp"

namespace hyperslab::comm {
namespace {

/// Thread blocks (CTAs) of one operation of a group; the variable NCCL_MAX_CTAS overrides it.
/// Tensor, context and expert groups delay layers and take the number that NCCL finds best.
int cta_budget(GroupRole role, const CtaBudgets& budgets) {
  switch (role) {
    case GroupRole::world: return budgets.world;
    case GroupRole::data:
    case GroupRole::shard:
    case GroupRole::replica:
    case GroupRole::expert_data:
    case GroupRole::expert_shard: return budgets.data;
    case GroupRole::pipeline: return budgets.pipeline;
    case GroupRole::tied: return budgets.tied;
    case GroupRole::tensor:
    case GroupRole::context:
    case GroupRole::expert:
    case GroupRole::key_value:
    case GroupRole::host:
    case GroupRole::other: break;
  }
  return NCCL_CONFIG_UNDEF_INT;
}

/// True if the blocks of a group are scheduled before the arithmetic's.
bool has_priority(GroupRole role) { return role != GroupRole::world; }

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::u16:
    case DType::u8: break;
  }
  return ncclUint8;  // only moved, as bytes
}

std::size_t count_of(CView view) { return static_cast<std::size_t>(view.numel()); }

cudaStream_t make_stream(GroupRole role) {
  const std::string_view name = name_of(role);
  int least = 0;
  int greatest = 0;
  HS_COMM_CUDA(name, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  HS_COMM_CUDA(name, cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                  has_priority(role) ? greatest : least));
  return stream;
}

/// Takes over `own`.
std::unique_ptr<Communicator> adopt(MPI_Comm own, GroupRole role,
                                    const std::shared_ptr<FlightRecorders>& recorders) {
  const std::string_view name = name_of(role);
  HS_MPI(name, MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN));
  if (size_of_group(own, name) > 1) return std::make_unique<NcclCommunicator>(own, role, recorders);
  HS_MPI(name, MPI_Comm_free(&own));
  return make_self_communicator(role, Device::cuda);
}

}  // namespace

NcclCommunicator::NcclCommunicator(MPI_Comm own, GroupRole role,
                                   std::shared_ptr<FlightRecorders> recorders)
    : Communicator(role, rank_in(own, name_of(role)), size_of_group(own, name_of(role)),
                   Device::cuda),
      comm_(own),
      flight_recorders_(std::move(recorders)),
      stream_(make_stream(role)),
      events_(std::make_unique<EventPool>(name(), kMaxUnderWay + 1)),
      clock_(std::make_unique<BusyClock>()),
      operations_(kMaxUnderWay) {
  HS_MPI(name(), MPI_Comm_set_name(comm_, name().c_str()));
  fork_ = events_->take();
  HS_COMM_CUDA(name(), clock_->clear(stream_));
  const std::shared_ptr<FlightRecorder> recorder =
      flight_recorders_->add(role, leader_of(comm_, name()));
  record_calls(recorder);
  recorder->wait_begins(Call::barrier, 0);
  initialize_nccl();
  if (role == GroupRole::tensor) {
    peer_copies_ = PeerCopies::make(comm_, name(), PeerCopies::AllReduces::no);
    if (peer_copies_) peer_sums_ = PeerSums::make(comm_, name());
  } else if (role == GroupRole::expert) {
    peer_copies_ = PeerCopies::make(comm_, name(), PeerCopies::AllReduces::no);
  } else if (role == GroupRole::data || role == GroupRole::shard) {
    peer_copies_ = PeerCopies::make(comm_, name(), PeerCopies::AllReduces::yes);
  }
  recorder->wait_ends();
}

/// The first member sends its status with the id, so that no member waits for an id that never
/// comes.
void NcclCommunicator::initialize_nccl() {
  struct IdAndStatus {
    ncclUniqueId id;
    int status;
  } first = {};
  if (rank() == 0) first.status = ncclGetUniqueId(&first.id);
  HS_MPI(name(), MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm_));
  check_nccl(static_cast<ncclResult_t>(first.status), "ncclGetUniqueId", name(), nullptr);

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = cta_budget(role(), machine_of(device_name()).ctas);
  config.commName = name().c_str();
  HS_NCCL(name(), nullptr, ncclCommInitRankConfig(&nccl_, size(), first.id, rank(), &config));
}

NcclCommunicator::~NcclCommunicator() {
  if (!may_free_mpi_handles()) {
    // Freeing device memory waits for the GPU, which may wait for members that are elsewhere.
    (void)events_.release();
    (void)clock_.release();
    (void)peer_copies_.release();
    (void)peer_sums_.release();
    return;
  }
  if (under_way() > 0) {
    log::warn(fmt::format("communicator {}: destroyed with {} operations not waited for", name(),
                          under_way()));
  }
  const std::string who = "communicator " + name();
  log_if_cuda_failed(cudaStreamSynchronize(stream_), who, "cudaStreamSynchronize");
  peer_sums_.reset();
  peer_copies_.reset();
  const ncclResult_t destroyed = ncclCommDestroy(nccl_);
  if (destroyed != ncclSuccess) {
    log::failed_close(who, "ncclCommDestroy", ncclGetErrorString(destroyed));
  }
  log_if_cuda_failed(cudaStreamDestroy(stream_), who, "cudaStreamDestroy");
  if (MPI_Comm_free(&comm_) != MPI_SUCCESS) log::failed_close(who, "MPI_Comm_free", "an MPI error");
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key, GroupRole role) {
  if (color < 0) refuse("split", fmt::format("color {} of {} is negative", color, name_of(role)));
  MPI_Comm own = MPI_COMM_NULL;
  HS_MPI(name(), MPI_Comm_split(comm_, color, key, &own));
  return adopt(own, role, flight_recorders_);
}

unsigned long long NcclCommunicator::capture_of(cudaStream_t stream) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  HS_COMM_CUDA(name(), cudaStreamGetCaptureInfo(stream, &status, &id));
  return status == cudaStreamCaptureStatusNone ? 0 : id;
}

/// fork_ has happened once everything is done that is enqueued on `after`.
void NcclCommunicator::fork(Stream& after, Ticket ticket) {
  const cudaStream_t stream = after.cuda();
  operation(ticket) = {events_->take(), capture_of(stream)};
  HS_COMM_CUDA(name(), cudaEventRecord(fork_, stream));
}

template <class Issue>
void NcclCommunicator::run(Stream& after, Call call, Ticket ticket, Issue&& issue) {
  fork(after, ticket);
  HS_COMM_CUDA(name(), cudaStreamWaitEvent(stream_, fork_, 0));
  if (times(call)) HS_COMM_CUDA(name(), clock_->start(stream_));
  issue();
  if (times(call)) HS_COMM_CUDA(name(), clock_->stop(stream_));
  HS_COMM_CUDA(name(), cudaEventRecord(operation(ticket).done, stream_));
}

/// `issue` returns the stream that carries the operation. The own stream has a part in it only if
/// the operation is timed.
template <class Issue>
void NcclCommunicator::run_copies(Stream& after, Call call, Ticket ticket, Issue&& issue) {
  fork(after, ticket);
  const Operation& mine = operation(ticket);
  if (!times(call)) {
    HS_COMM_CUDA(name(), cudaEventRecord(mine.done, issue(PeerCopies::Start{fork_, mine.capture})));
    return;
  }
  HS_COMM_CUDA(name(), cudaStreamWaitEvent(stream_, fork_, 0));
  HS_COMM_CUDA(name(), clock_->start(stream_));
  HS_COMM_CUDA(name(), cudaEventRecord(mine.done, issue(PeerCopies::Start{fork_, mine.capture})));
  HS_COMM_CUDA(name(), cudaStreamWaitEvent(stream_, mine.done, 0));
  HS_COMM_CUDA(name(), clock_->stop(stream_));
  HS_COMM_CUDA(name(), cudaEventRecord(mine.done, stream_));
}

/// True if copies add `full` up. Sums of graphs are NCCL's (see PeerCopies::takes_sum).
bool NcclCommunicator::copies_sum(Stream& after, View full) const {
  return peer_copies_ != nullptr && peer_copies_->takes_sum(full) && capture_of(after.cuda()) == 0;
}

void NcclCommunicator::do_all_reduce(Stream& after, View buffer, ReduceOp op, Ticket ticket) {
  if (peer_sums_ != nullptr && op == ReduceOp::sum && PeerSums::takes(buffer)) {
    return run(after, Call::all_reduce, ticket, [&] {
      const bool captured = operation(ticket).capture != 0;
      HS_COMM_CUDA(name(), peer_sums_->all_reduce(stream_, buffer, captured));
    });
  }
  if (op == ReduceOp::sum && copies_sum(after, buffer)) {
    return run_copies(after, Call::all_reduce, ticket, [&](const PeerCopies::Start& start) {
      return peer_copies_->all_reduce(start, buffer);
    });
  }
  run(after, Call::all_reduce, ticket, [&] {
    HS_NCCL(name(), nccl_,
            ncclAllReduce(buffer.raw(), buffer.raw(), count_of(buffer), type_of(buffer.dtype()),
                          op == ReduceOp::sum ? ncclSum : ncclMax, nccl_, stream_));
  });
}

void NcclCommunicator::do_reduce_scatter(Stream& after, View full, View shard, Ticket ticket) {
  const std::byte* own =
      static_cast<std::byte*>(full.raw()) + static_cast<std::size_t>(rank()) * shard.bytes();
  if (shard.raw() == own && copies_sum(after, full)) {
    return run_copies(after, Call::reduce_scatter, ticket, [&](const PeerCopies::Start& start) {
      return peer_copies_->reduce_scatter(start, full);
    });
  }
  run(after, Call::reduce_scatter, ticket, [&] {
    HS_NCCL(name(), nccl_,
            ncclReduceScatter(full.raw(), shard.raw(), count_of(shard), type_of(full.dtype()),
                              ncclSum, nccl_, stream_));
  });
}

void NcclCommunicator::do_reduce_scatter_others(Stream& after, View full, View shard, Piece piece,
                                                Ticket ticket) {
  run_copies(after, Call::reduce_scatter, ticket, [&](const PeerCopies::Start& start) {
    return peer_copies_->reduce_scatter_others(start, full, shard, piece);
  });
}

void NcclCommunicator::do_all_gather_piece(Stream& after, View full, Piece piece, Ticket ticket) {
  run_copies(after, Call::all_gather, ticket, [&](const PeerCopies::Start& start) {
    return peer_copies_->all_gather_piece(start, full, piece);
  });
}

std::shared_ptr<void> NcclCommunicator::do_share(const Arena& arena) {
  return peer_copies_ == nullptr ? nullptr : peer_copies_->share(arena);
}

bool NcclCommunicator::is_shared(CView view) const {
  return peer_copies_ != nullptr && peer_copies_->is_shared(view);
}

void NcclCommunicator::do_all_gather(Stream& after, CView shard, View full, Ticket ticket) {
  if (peer_copies_ != nullptr && peer_copies_->takes_gather(full)) {
    return run_copies(after, Call::all_gather, ticket, [&](const PeerCopies::Start& start) {
      return peer_copies_->all_gather(start, shard, full);
    });
  }
  run(after, Call::all_gather, ticket, [&] {
    HS_NCCL(name(), nccl_,
            ncclAllGather(shard.raw(), full.raw(), shard.bytes(), ncclUint8, nccl_, stream_));
  });
}

void NcclCommunicator::do_all_to_all(Stream& after, CView sent, View received, Ticket ticket) {
  run(after, Call::all_to_all, ticket, [&] {
    const Dim n = sent.numel() / size();
    HS_NCCL(name(), nccl_, ncclGroupStart());
    for (int member = 0; member < size(); ++member) {
      const CView to = sent.flat().slice(member * n, n);
      const View from = received.flat().slice(member * n, n);
      HS_NCCL(name(), nccl_, ncclSend(to.raw(), to.bytes(), ncclUint8, member, nccl_, stream_));
      HS_NCCL(name(), nccl_, ncclRecv(from.raw(), from.bytes(), ncclUint8, member, nccl_, stream_));
    }
    HS_NCCL(name(), nccl_, ncclGroupEnd());
  });
}

void NcclCommunicator::do_broadcast(Stream& after, View buffer, int root, Ticket ticket) {
  run(after, Call::broadcast, ticket, [&] {
    HS_NCCL(
        name(), nccl_,
        ncclBroadcast(buffer.raw(), buffer.raw(), buffer.bytes(), ncclUint8, root, nccl_, stream_));
  });
}

void NcclCommunicator::do_all_to_all_rows(Stream& after, CView own_sent, View own_received,
                                          std::span<const Message> others, Ticket ticket) {
  run(after, Call::all_to_all, ticket, [&] {
    if (own_sent.bytes() > 0) {
      HS_COMM_CUDA(name(), cudaMemcpyAsync(own_received.raw(), own_sent.raw(), own_sent.bytes(),
                                           cudaMemcpyDeviceToDevice, stream_));
    }
    issue_messages(others);
  });
}

void NcclCommunicator::do_exchange(Stream& after, std::span<const Message> messages,
                                   Ticket ticket) {
  run(after, Call::send, ticket, [&] { issue_messages(messages); });
}

/// All at once.
void NcclCommunicator::issue_messages(std::span<const Message> messages) {
  HS_NCCL(name(), nccl_, ncclGroupStart());
  for (const auto& [send, recv, peer] : messages) {
    if (send && send.bytes() > 0) {
      HS_NCCL(name(), nccl_, ncclSend(send.raw(), send.bytes(), ncclUint8, peer, nccl_, stream_));
    } else if (recv && recv.bytes() > 0) {
      HS_NCCL(name(), nccl_, ncclRecv(recv.raw(), recv.bytes(), ncclUint8, peer, nccl_, stream_));
    }
  }
  HS_NCCL(name(), nccl_, ncclGroupEnd());
}

double NcclCommunicator::do_wait(Stream& before, Ticket ticket) {
  const Operation mine = std::exchange(operation(ticket), {});
  const cudaStream_t stream = before.cuda();
  if (capture_of(stream) != mine.capture) {
    refuse("wait", fmt::format("ticket {} and its wait are not captured into the same graph (called"
                               " in capture {}, waited for in {}; 0: none)",
                               ticket, mine.capture, capture_of(stream)));
  }
  HS_COMM_CUDA(name(), cudaStreamWaitEvent(stream, mine.done, 0));
  events_->give_back(mine.done);
  check_peers();
  return 0;
}

/// Reports errors that NCCL's own threads found since the last call, such as a broken connection.
void NcclCommunicator::check_peers() const {
  ncclResult_t state = ncclSuccess;
  HS_NCCL(name(), nccl_, ncclCommGetAsyncError(nccl_, &state));
  if (state != ncclInProgress) check_nccl(state, "an operation in progress", name(), nccl_);
}

void NcclCommunicator::do_barrier() { HS_MPI(name(), MPI_Barrier(comm_)); }

double NcclCommunicator::do_collect_seconds() {
  const double now = clock_->seconds();
  return now - std::exchange(collected_seconds_, now);
}

std::unique_ptr<Communicator> make_nccl_communicator(
    MPI_Comm parent, GroupRole role, const std::shared_ptr<FlightRecorders>& recorders) {
  MPI_Comm own = MPI_COMM_NULL;
  HS_MPI(name_of(role), MPI_Comm_dup(parent, &own));
  return adopt(own, role, recorders);
}

int nccl_library_version() {
  int version = 0;
  HS_NCCL("NCCL", nullptr, ncclGetVersion(&version));
  return version;
}

int nccl_header_version() { return NCCL_VERSION_CODE; }

}  // namespace hyperslab::comm
