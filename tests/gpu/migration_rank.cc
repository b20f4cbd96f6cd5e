#include "tests/gpu/migration_rank.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "client/rows/control/tcp_all_gather.h"
#include "client/rows/executor.h"
#include "client/rows/paths/transport_choice.h"
#include "client/rows/row_message.h"
#include "placement/migration_plan.h"
#include "tests/client/faulty_channels.h"
#include "tests/client/rows/expert_world.h"
#include "tests/client/rows/forwarding.h"
#include "tests/gpu/device_queue.h"

namespace eplb {
namespace {

constexpr char kFlag[] = "--migration-rank";
constexpr absl::Duration kRankPatience = absl::Seconds(60);
constexpr absl::Duration kLostPeerDeadline = absl::Seconds(20);
constexpr uint64_t kSwitches = 3;
constexpr uint64_t kSwitchOfDeath = 2;
constexpr StateResidency kResidency = StateResidency::kEveryReplica;

// Rows of megabytes, small ones as scales are, and one that no access width divides.
std::vector<TensorShape> LargeShapes() {
  constexpr int64_t kLarge = int64_t{3} << 20;
  return {{.name = "w1", .role = TensorRole::kWeight, .row_bytes = kLarge, .row_stride = kLarge},
          {.name = "scale", .role = TensorRole::kWeight, .row_bytes = 10'752, .row_stride = 10'752},
          {.name = "odd", .role = TensorRole::kState, .row_bytes = 65'537, .row_stride = 65'600}};
}

// Kills the process in the post of kSwitchOfDeath, of which the peers know by then.
class DyingTransport final : public ForwardingTransport {
 public:
  DyingTransport(std::unique_ptr<Transport> transport, bool midway)
      : ForwardingTransport(std::move(transport)), midway_(midway) {}

  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    dies_ = moves.post_id == kSwitchOfDeath;
    return ForwardingTransport::Post(std::move(moves));
  }
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    if (dies_ && !midway_) (void)raise(SIGKILL);
    absl::StatusOr<Progress> progress = ForwardingTransport::Poll(ticket, max_wait);
    if (dies_ && progress.ok() && progress->sent_bytes > 0) (void)raise(SIGKILL);
    return progress;
  }

 private:
  const bool midway_;
  bool dies_ = false;
};

absl::StatusOr<std::unique_ptr<Executor>> Connect(const MigrationJob& job,
                                                  const ExecutorOptions& options,
                                                  const ExpertMemory& memory,
                                                  const AllGather& all_gather) {
  EPLB_ASSIGN_OR_RETURN(const int64_t staging, StagingBytes(options, memory.tensors()));
  RowMoverOptions mover_options{.transport = {.rank = RankId{job.rank},
                                              .world_size = job.num_ranks,
                                              .staging_bytes = staging,
                                              .secret = "secret of the test",
                                              .connect_timeout = kRankPatience},
                                .name = job.transport,
                                .memory = {},
                                .ep_group = {},
                                .use_ipc_handles = job.use_ipc_handles};
  if (job.ranks_per_host > 0) {
    mover_options.host = absl::StrCat("host ", job.rank / job.ranks_per_host);
  }
  for (int32_t rank = 0; rank < job.num_ranks; ++rank) {
    mover_options.ep_group.push_back(RankId{rank});
  }
  // Many pieces, so that a death midway is between some of them.
  if (job.killed_rank >= 0) mover_options.nccl.piece_bytes = int64_t{256} << 10;
  EPLB_ASSIGN_OR_RETURN(mover_options.memory, FindMemory(memory.tensors()));
  if (mover_options.memory.device.has_value() != job.on_device) {
    return absl::InternalError(
        absl::StrCat("the experts lie in ", mover_options.memory.Text(), " by FindMemory"));
  }
  EPLB_ASSIGN_OR_RETURN(RowMover mover, MakeRowMover(mover_options, all_gather));
  // All but the last are made impossible where a test asks for what is left.
  const std::string expected = job.transport == "auto" ? "host" : job.transport;
  if (mover.transport->name() != expected) {
    return absl::InternalError(absl::StrCat("transport ", std::string(mover.transport->name()),
                                            " was chosen, not ", expected));
  }
  if (job.transport == "auto" &&
      mover.report.fallback_reason.find("checksum differs") == std::string::npos) {
    return absl::InternalError(
        absl::StrCat("peer was passed over: ", mover.report.fallback_reason));
  }
  if (job.rank == job.killed_rank) {
    mover.transport =
        std::make_unique<DyingTransport>(std::move(mover.transport), job.killed_midway);
  }
  return Executor::Make(options, memory.tensors(), std::move(mover.transport),
                        std::move(mover.queue));
}

// One switch from `current` to `target`; says how long the rows took.
absl::Status Switch(const MigrationJob& job, Executor& executor, const MigrationPlan& plan,
                    uint64_t post_id) {
  const absl::Time begin = absl::Now();
  EPLB_ASSIGN_OR_RETURN(
      const Executor::Staged staged,
      executor.Stage(plan, {.post_id = post_id, .deadline = absl::Now() + kRankPatience}));
  if (job.rank == 0) {
    std::printf("%s, %d ranks: sent %.1f MB, received %.1f MB in %.2f ms\n", job.transport.c_str(),
                job.num_ranks, 1e-6 * static_cast<double>(staged.sent_bytes),
                1e-6 * static_cast<double>(staged.received_bytes),
                absl::ToDoubleMilliseconds(absl::Now() - begin));
  }
  return executor.Commit();
}

// A switch in which a peer dies: this rank sees it, or its deadline, and may vote no; its slots are
// as they were. AlreadyExists: all its rows had come before.
absl::Status LosePeer(const MigrationJob& job, Executor& executor, const MigrationPlan& plan) {
  const absl::Time begin = absl::Now();
  const absl::Time deadline = begin + kLostPeerDeadline;
  const absl::Status seen =
      executor.Stage(plan, {.post_id = kSwitchOfDeath, .deadline = deadline}).status();
  const absl::Duration taken = absl::Now() - begin;
  std::fprintf(stderr, "rank %d saw after %s: %s\n", job.rank, absl::FormatDuration(taken).c_str(),
               seen.ToString().c_str());
  if (!executor.may_vote()) return absl::InternalError("the rank must not even vote no");
  // The abort has a bound of its own, behind the deadline.
  if (taken > kLostPeerDeadline + kSettleTimeout) {
    return absl::DeadlineExceededError("the rank outlived its deadline");
  }
  executor.Discard();
  return seen.ok() ? absl::AlreadyExistsError("all rows had come") : absl::OkStatus();
}

// Checks a process whose experts are in host memory: each device that it touches costs it a context
// of hundreds of megabytes there.
absl::Status CheckNoContexts() {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess) return absl::OkStatus();  // no driver
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  (void)cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 12000,
                                         cudaEnableDefault, &result);
  const auto get_state = reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(found);
  if (get_state == nullptr) return absl::InternalError("no cuDevicePrimaryCtxGetState");
  for (int device = 0; device < num_devices; ++device) {
    unsigned int flags = 0;
    int active = 0;
    if (get_state(device, &flags, &active) != CUDA_SUCCESS || active != 0) {
      return absl::InternalError(absl::StrCat("device ", device, " has a context of this rank"));
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const MigrationJob& job) {
  EPLB_ASSIGN_OR_RETURN(const AllGather all_gather, MakeTcpAllGather({.rank = RankId{job.rank},
                                                                      .world_size = job.num_ranks,
                                                                      .port = job.port,
                                                                      .timeout = kRankPatience}));
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make({.num_layers = 2,
                                                                 .num_experts = 2 * job.num_ranks,
                                                                 .num_slots = 3 * job.num_ranks,
                                                                 .num_gpus = job.num_ranks,
                                                                 .num_nodes = 1,
                                                                 .num_groups = 1}));
  const ExecutorOptions options{.topology = topology, .gpu = GpuId{job.rank}};
  ExpertMemory memory(topology, options.gpu, LargeShapes(),
                      job.on_device ? &MakeDeviceQueue : nullptr);
  EPLB_ASSIGN_OR_RETURN(const ExpertBytes bytes,
                        CheckTensors(topology, options.gpu, memory.tensors()));
  const MigrationOptions migration{
      .weight_bytes = bytes.weight, .state_bytes = bytes.state, .state_residency = kResidency};
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                        Connect(job, options, memory, all_gather));
  std::mt19937 random(20240601);  // the same placements on all ranks
  Placement current = RandomPlacement(random, topology);
  memory.Fill(current, kResidency);
  for (uint64_t version = 1; version <= kSwitches; ++version) {
    const Placement target = RandomPlacement(random, topology);
    EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan, PlanMigration(current, target, {}, migration));
    const bool loses_peer = job.killed_rank >= 0 && version == kSwitchOfDeath;
    if (loses_peer && job.rank != job.killed_rank) {
      const absl::Status lost = LosePeer(job, *executor, plan);
      const int64_t wrong = memory.CountWrong(current, kResidency);
      return wrong == 0 ? lost
                        : absl::DataLossError(absl::StrCat(wrong, " bytes of old slots changed"));
    }
    EPLB_RETURN_IF_ERROR(Switch(job, *executor, plan, version));
    if (const int64_t wrong = memory.CountWrong(target, kResidency); wrong != 0) {
      return absl::DataLossError(absl::StrCat(wrong, " bytes are wrong in version ", version));
    }
    current = target;
  }
  if (!job.on_device) EPLB_RETURN_IF_ERROR(CheckNoContexts());
  return all_gather("ended").status();  // no rank leaves while others still read
}

}  // namespace

std::vector<std::string> ToArguments(const MigrationJob& job) {
  return {kFlag,
          absl::StrCat(job.rank),
          absl::StrCat(job.num_ranks),
          absl::StrCat(job.port),
          job.transport,
          job.use_ipc_handles ? "handles" : "best",
          absl::StrCat(job.ranks_per_host),
          job.on_device ? "device" : "host",
          absl::StrCat(job.killed_rank),
          job.killed_midway ? "midway" : "posted"};
}

std::optional<MigrationJob> MigrationJobFrom(int argc, char** argv) {
  MigrationJob job;
  uint32_t port = 0;
  if (argc != 11 || std::string_view(argv[1]) != kFlag || !absl::SimpleAtoi(argv[2], &job.rank) ||
      !absl::SimpleAtoi(argv[3], &job.num_ranks) || !absl::SimpleAtoi(argv[4], &port) ||
      !absl::SimpleAtoi(argv[7], &job.ranks_per_host) ||
      !absl::SimpleAtoi(argv[9], &job.killed_rank)) {
    return std::nullopt;
  }
  job.port = static_cast<uint16_t>(port);
  job.transport = argv[5];
  job.use_ipc_handles = std::string_view(argv[6]) == "handles";
  job.on_device = std::string_view(argv[8]) == "device";
  job.killed_midway = std::string_view(argv[10]) == "midway";
  return job;
}

int RunMigrationRank(const MigrationJob& job) {
  const absl::Status result = Run(job);
  if (result.ok()) return ::testing::Test::HasFailure() ? kRankFailed : kRankIsWell;
  std::fprintf(stderr, "rank %d: %s\n", job.rank, result.ToString().c_str());
  return absl::IsAlreadyExists(result) && job.killed_midway ? kRankHadAllRows : kRankFailed;
}

}  // namespace eplb
