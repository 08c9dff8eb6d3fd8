// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/world.hpp"

#include <fmt/format.h>
#include <omp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "cores.hpp"
#include "flight_recorder.hpp"
#include "hyperslab/comm/background_peers.hpp"
#include "hyperslab/comm/gpus.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "mpi_check.hpp"
#include "mpi_communicator.hpp"
#include "mpi_transport.hpp"
#include "nccl.hpp"

namespace hyperslab::comm {
namespace {

const std::string kName = "world";
constexpr int kGatherTag = 1;
constexpr int kNumberTag = 2;

bool has_launcher() {
  constexpr std::array kVariables = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};
  return std::ranges::any_of(kVariables, [](const char* name) { return std::getenv(name); });
}

/// Without a launcher Open MPI would start a daemon and open the network, which no one needs, and
/// make a folder that all such processes share: one that ends removes another's first files.
void stay_alone() {
  constexpr int kKeepTheUsers = 0;
  ::setenv("OMPI_MCA_ess_singleton_isolated", "1", kKeepTheUsers);
  ::setenv("OMPI_MCA_pml", "ob1", kKeepTheUsers);
  ::setenv("OMPI_MCA_btl", "self", kKeepTheUsers);
  ::setenv("OMPI_MCA_orte_create_session_dirs", "0", kKeepTheUsers);
}

/// If ranks of a host cannot read each other's memory, Open MPI copies messages in fragments of
/// 32 KiB, and a member that computes answers only between two ops: the number of fragments sent
/// before an answer decides how much moves during the computation. Its default is 3 fragments.
void send_far_ahead() {
  constexpr int kKeepTheUsers = 0;
  ::setenv("OMPI_MCA_pml_ob1_send_pipeline_depth", "256", kKeepTheUsers);
}

/// With more ranks than cores a rank that polls takes the core from one that computes. mpirun knows
/// slots, not cores, and srun neither.
void yield_if_crowded() {
  constexpr int kKeepTheUsers = 0;
  if (seems_crowded()) ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", kKeepTheUsers);
}

/// srun without a common PMI starts tasks that each believe to be alone.
void check_srun(bool launcher, int size) {
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (launcher || size > 1 || tasks == nullptr || std::atoi(tasks) < 2) return;
  throw Error(ExitCode::device,
              fmt::format("srun started {} tasks, but each is an MPI world of its own; start with "
                          "srun --mpi=pmix or with mpirun",
                          tasks));
}

char to_lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::int64_t checked_length(std::size_t length) {
  if (length > INT_MAX) {
    throw Error(ExitCode::internal,
                fmt::format("world: a text of {} bytes is beyond {}", length, INT_MAX));
  }
  return static_cast<std::int64_t>(length);
}

}  // namespace

struct World::Impl {
  /// State that a world and its parts share.
  struct Process {
    std::shared_ptr<FlightRecorders> flight_recorders = std::make_shared<FlightRecorders>();
    std::shared_ptr<MpiEngine> engine;
    std::atomic<bool> aborted = false;
    bool alone = true;          ///< one rank was started
    bool nccl_started = false;  ///< NCCL has read its variables
  };
  MPI_Comm comm = MPI_COMM_NULL;  ///< only for host-side messages
  std::shared_ptr<Process> process = std::make_shared<Process>();
  bool is_part = false;
  bool gpus_checked = false;
  std::shared_ptr<FlightRecorder> recorder;  ///< records the host-side messages
  std::uint64_t messages = 0;                ///< number of host-side messages so far

  void start_flight_recorder() {
    recorder = process->flight_recorders->add(GroupRole::host, leader_of(comm, kName));
  }
};

/// Records a host-side message for the life of the object.
class World::RecordedMessage {
 public:
  RecordedMessage(const World& world, Call kind) : recorder_(*world.impl_->recorder) {
    const std::uint64_t number = ++world.impl_->messages;
    recorder_.called(kind, number);
    recorder_.wait_begins(kind, number);
  }
  ~RecordedMessage() { recorder_.wait_ends(); }
  RecordedMessage(const RecordedMessage&) = delete;
  RecordedMessage& operator=(const RecordedMessage&) = delete;
  RecordedMessage(RecordedMessage&&) = delete;
  RecordedMessage& operator=(RecordedMessage&&) = delete;

 private:
  FlightRecorder& recorder_;
};

World::World(int* argc, char*** argv) : impl_(std::make_unique<Impl>()) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  require(initialized == 0, "a process has one World");
  const bool launcher = has_launcher();
  if (launcher) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // mpirun killed by SIGKILL leaves its ranks running
    send_far_ahead();
    yield_if_crowded();
  } else {
    stay_alone();
  }
  int provided = 0;
  HS_MPI(kName, MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(ExitCode::device, "the MPI library has no MPI_THREAD_FUNNELED; use another one");
  }
  HS_MPI(kName, MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  HS_MPI(kName, MPI_Comm_dup(MPI_COMM_WORLD, &impl_->comm));
  HS_MPI(kName, MPI_Comm_set_name(impl_->comm, kName.c_str()));
  HS_MPI(kName, MPI_Comm_rank(impl_->comm, &rank_));
  HS_MPI(kName, MPI_Comm_size(impl_->comm, &size_));
  check_srun(launcher, size_);

  MPI_Comm local = MPI_COMM_NULL;
  HS_MPI(kName,
         MPI_Comm_split_type(impl_->comm, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local));
  HS_MPI(kName, MPI_Comm_rank(local, &local_rank_));
  HS_MPI(kName, MPI_Comm_size(local, &local_size_));
  HS_MPI(kName, MPI_Comm_free(&local));
  std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
  int length = 0;
  HS_MPI(kName, MPI_Get_processor_name(host.data(), &length));
  host_.assign(host.data(), static_cast<std::size_t>(length));
  impl_->process->engine = std::make_shared<MpiEngine>(impl_->process->flight_recorders);
  impl_->process->alone = size_ == 1;
  impl_->start_flight_recorder();
  share_threads();
}

void World::share_threads() {
  std::vector<CoreLimits> ranks;
  for (const std::string& text : all_gather(to_text(core_limits(host_)))) {
    ranks.push_back(limits_of_text(text));
  }
  threads_ = share_cores(ranks)[static_cast<std::size_t>(rank_)];
  threads_.yields = mpi_yields();
  // OpenMP itself has read OMP_NUM_THREADS if it is set, lists and limits too.
  if (threads_.requested_threads == 0) omp_set_num_threads(threads_.threads);
}

World::World(const World& whole, std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)),
      local_rank_(whole.local_rank_),
      local_size_(whole.local_size_),
      host_(whole.host_),
      threads_(whole.threads_) {
  HS_MPI(kName, MPI_Comm_rank(impl_->comm, &rank_));
  HS_MPI(kName, MPI_Comm_size(impl_->comm, &size_));
  impl_->start_flight_recorder();
}

Activity& World::activity() { return impl_->process->flight_recorders->activity(); }
std::shared_ptr<FlightRecorders> World::flight_recorders() const {
  return impl_->process->flight_recorders;
}

World::~World() {
  if (impl_->process->aborted || !may_free_mpi_handles()) return;
  MPI_Comm_free(&impl_->comm);
  if (impl_->is_part) return;
  impl_->process->engine.reset();
  MPI_Finalize();
}

std::unique_ptr<World> World::part(int color) {
  auto impl = std::make_unique<Impl>();
  impl->process = impl_->process;
  impl->is_part = true;
  const int mpi_color = color < 0 ? MPI_UNDEFINED : color;
  HS_MPI(kName, MPI_Comm_split(impl_->comm, mpi_color, rank_, &impl->comm));
  if (impl->comm == MPI_COMM_NULL) return nullptr;
  HS_MPI(kName, MPI_Comm_set_errhandler(impl->comm, MPI_ERRORS_RETURN));
  HS_MPI(kName, MPI_Comm_set_name(impl->comm, "part of the world"));
  return std::unique_ptr<World>(new World(*this, std::move(impl)));
}

std::unique_ptr<Communicator> World::communicator(Device device, GroupRole role) {
  if (device == Device::meta) return make_meta_communicator(role, rank_, size_);
  if (size_ == 1 && (device == Device::cpu || kHasCuda))
    return make_self_communicator(role, device);
  if (device == Device::cpu)
    return make_mpi_communicator(impl_->process->engine, impl_->comm, role);
  if constexpr (kHasCuda) {
    if (!impl_->gpus_checked) {
      require_distinct_gpus(*this, device_bus_id());
      require_one_nccl(*this);
    }
    impl_->gpus_checked = true;
    impl_->process->nccl_started = true;
    return make_nccl_communicator(impl_->comm, role, impl_->process->flight_recorders);
  }
  throw Error(ExitCode::device,
              fmt::format("communicator {}: none for {} in this build; configure with "
                          "-DHYPERSLAB_CUDA=ON or set run.device: cpu",
                          name_of(role), hyperslab::name_of(device)));
}

std::unique_ptr<BackgroundPeers> World::background_peers() {
  auto transport = size_ > 1 ? std::make_unique<MpiTransport>(impl_->comm) : nullptr;
  return std::make_unique<BackgroundPeers>(rank_, size_, host_, std::move(transport));
}

void World::set_deterministic() {
  require(!impl_->process->nccl_started, "set_deterministic: NCCL was started before");
  constexpr const char* kVariable = "NCCL_ALGO";
  constexpr std::string_view kRing = "Ring";
  const char* users = std::getenv(kVariable);
  const bool mine = users == nullptr ||
                    std::ranges::equal(std::string_view(users), kRing, {}, to_lower, to_lower);
  if (!mine) {
    throw Error(ExitCode::device,
                fmt::format("{}={} is set on rank {}, but deterministic runs want {}; unset it or "
                            "set run.deterministic: false",
                            kVariable, users, rank_, kRing));
  }
  ::setenv(kVariable, kRing.data(), 1);
}

void World::barrier() {
  const RecordedMessage message(*this, Call::barrier);
  HS_MPI(kName, MPI_Barrier(impl_->comm));
}

std::string World::broadcast(const std::string& text, int root) {
  const RecordedMessage message(*this, Call::broadcast);
  std::int64_t length = rank_ == root ? checked_length(text.size()) : 0;
  HS_MPI(kName, MPI_Bcast(&length, 1, MPI_INT64_T, root, impl_->comm));
  std::string out = rank_ == root ? text : std::string(static_cast<std::size_t>(length), '\0');
  HS_MPI(kName, MPI_Bcast(out.data(), static_cast<int>(length), MPI_CHAR, root, impl_->comm));
  return out;
}

std::vector<std::string> World::all_gather(const std::string& text) {
  const RecordedMessage message(*this, Call::all_gather);
  const auto mine = static_cast<int>(checked_length(text.size()));
  std::vector<int> lengths(static_cast<std::size_t>(size_));
  HS_MPI(kName, MPI_Allgather(&mine, 1, MPI_INT, lengths.data(), 1, MPI_INT, impl_->comm));
  const auto total = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
  checked_length(total);
  std::vector<int> begins(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), 0);
  std::string joined(total, '\0');
  HS_MPI(kName, MPI_Allgatherv(text.data(), mine, MPI_CHAR, joined.data(), lengths.data(),
                               begins.data(), MPI_CHAR, impl_->comm));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    texts.push_back(
        joined.substr(static_cast<std::size_t>(begins[i]), static_cast<std::size_t>(lengths[i])));
  }
  return texts;
}

std::vector<std::string> World::gather(const std::string& bytes, int root,
                                       std::size_t message_bytes) {
  require(message_bytes > 0 && message_bytes <= INT_MAX, "gather: messages of 1 to 2^31-1 bytes");
  const RecordedMessage message(*this, Call::all_gather);
  const auto mine = static_cast<long long>(bytes.size());
  std::vector<long long> sizes(static_cast<std::size_t>(size_));
  HS_MPI(kName,
         MPI_Allgather(&mine, 1, MPI_LONG_LONG, sizes.data(), 1, MPI_LONG_LONG, impl_->comm));
  const auto for_messages = [&](std::size_t size, auto&& visit) {
    for (std::size_t begin = 0; begin < size; begin += message_bytes) {
      visit(begin, static_cast<int>(std::min(size - begin, message_bytes)));
    }
  };
  if (rank_ != root) {
    for_messages(bytes.size(), [&](std::size_t begin, int count) {
      HS_MPI(kName, MPI_Send(bytes.data() + begin, count, MPI_BYTE, root, kGatherTag, impl_->comm));
    });
    return {};
  }
  std::vector<std::string> payloads;
  for (int source = 0; source < size_; ++source) {
    if (source == rank_) {
      payloads.push_back(bytes);
      continue;
    }
    std::string payload(static_cast<std::size_t>(sizes[static_cast<std::size_t>(source)]), '\0');
    for_messages(payload.size(), [&](std::size_t begin, int count) {
      HS_MPI(kName, MPI_Recv(payload.data() + begin, count, MPI_BYTE, source, kGatherTag,
                             impl_->comm, MPI_STATUS_IGNORE));
    });
    payloads.push_back(std::move(payload));
  }
  return payloads;
}

bool World::all(bool mine) { return max(mine ? 0 : 1) == 0; }

std::int64_t World::max(std::int64_t mine) {
  const RecordedMessage message(*this, Call::all_reduce);
  HS_MPI(kName, MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_INT64_T, MPI_MAX, impl_->comm));
  return mine;
}

double World::sum(double mine) {
  const RecordedMessage message(*this, Call::all_reduce);
  HS_MPI(kName, MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_DOUBLE, MPI_SUM, impl_->comm));
  return mine;
}

void World::send(int rank, double number) {
  const RecordedMessage message(*this, Call::send);
  HS_MPI(kName, MPI_Send(&number, 1, MPI_DOUBLE, rank, kNumberTag, impl_->comm));
}

double World::receive(int rank) {
  const RecordedMessage message(*this, Call::recv);
  double number = 0;
  HS_MPI(kName, MPI_Recv(&number, 1, MPI_DOUBLE, rank, kNumberTag, impl_->comm, MPI_STATUS_IGNORE));
  return number;
}

void World::abort(int code) noexcept {
  constexpr unsigned kGraceSeconds = 3;
  const bool first = !impl_->process->aborted.exchange(true);
  if (!first) ::sleep(kGraceSeconds);
  int finalized = 0;
  MPI_Finalized(&finalized);
  // A single rank has no other to end, and MPI_Abort would only print.
  if (first && finalized == 0 && !impl_->process->alone) MPI_Abort(MPI_COMM_WORLD, code);
  ::_exit(code);
}

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  HS_MPI(kName, MPI_Get_library_version(text.data(), &length));
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

}  // namespace hyperslab::comm
