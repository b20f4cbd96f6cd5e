// One rank of the demonstration job: connects, replays the trace step by step, and verifies its
// expert memory after each switch.
#include "deploy/examples/replay_trainer/trainer.h"

#include <openssl/rand.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/formats/load_file.h"
#include "client/client.h"
#include "client/rows/control/control_channel.h"
#include "client/rows/control/tcp_all_gather.h"
#include "client/run_log/run_directory.h"
#include "deploy/examples/replay_trainer/device_mirror.h"
#include "deploy/examples/replay_trainer/expert_state.h"
#include "deploy/examples/replay_trainer/step_loads.h"
#include "placement/evaluate.h"
#include "placement/placement.h"
#include "placement/without_eplb.h"

namespace eplb {

namespace {

absl::StatusOr<StepLoads> ReadTrace(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const LoadFile file, ReadLoadFile(path));
  std::vector<RecordedWindow> windows;
  for (const LoadWindow& window : file.windows) {
    if (!window.load.is_counts()) {
      return InvalidInput(path, ": a trace to replay has integer counts");
    }
    windows.push_back({window.first_step, window.last_step, window.load.counts()});
  }
  absl::StatusOr<StepLoads> loads = StepLoads::Make(std::move(windows));
  if (!loads.ok()) return InvalidInput(path, ": ", loads.status().message());
  return loads;
}

absl::StatusOr<AllGather> MakeRendezvous(const TrainerOptions& options) {
  if (options.rendezvous.empty()) {
    if (options.client.endpoint.empty()) {
      return InvalidInput("without --endpoint, --rendezvous HOST:PORT is needed");
    }
    return MakeDaemonAllGather(options.client);
  }
  const size_t colon = options.rendezvous.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(options.rendezvous.substr(colon + 1), &port) || port == 0 || port > 65535) {
    return InvalidInput("--rendezvous is \"", options.rendezvous, "\", expected HOST:PORT");
  }
  return MakeTcpAllGather({.rank = RankId{options.client.rank},
                           .world_size = options.client.world_size,
                           .address = options.rendezvous.substr(0, colon),
                           .port = static_cast<uint16_t>(port),
                           .timeout = options.client.start_deadline});
}

// Returns the options of the client, with those that follow from the trace.
ClientOptions ClientOptionsOf(const TrainerOptions& options, const StepLoads& loads) {
  ClientOptions client = options.client;
  client.num_layers = loads.num_layers();
  client.num_experts = loads.num_experts();
  if (client.num_slots == 0) client.num_slots = client.num_experts;
  client.num_gpus = client.world_size;
  if (!options.log_dir.empty()) {
    client.history_path = absl::StrCat(options.log_dir, "/rank-", client.rank, ".jsonl");
    client.placements_path = absl::StrCat(options.log_dir, "/placements.jsonl");
  }
  return client;
}

absl::StatusOr<std::unique_ptr<ControlChannel>> MakeJobChannel(const TrainerOptions& options,
                                                               const AllGather& all_gather) {
  std::string secret(32, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()),
                 static_cast<int>(secret.size())) != 1) {
    return Internal("no random bytes for the job's secret");
  }
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> secrets, all_gather(secret));
  return MakeTcpControlChannel({.rank = RankId{options.client.rank},
                                .world_size = options.client.world_size,
                                .bind_address = options.client.bind_address,
                                .secret = secrets[0],
                                .connect_timeout = options.client.start_deadline},
                               all_gather);
}

absl::Status CheckGroups(const ClientOptions& client) {
  if (client.num_experts % client.num_groups == 0) return absl::OkStatus();
  return InvalidInput("--groups ", client.num_groups, " expert groups do not divide the ",
                      client.num_experts, " experts");
}

absl::Status CheckMemory(const TrainerOptions& options) {
  constexpr double kMaxBytes = 64e9;
  constexpr int kBytesPerParameter = 14;  // bf16 weight, fp32 master, two fp32 moments
  const ClientOptions& client = options.client;
  const double bytes = static_cast<double>(client.num_layers) * client.num_slots *
                       options.parameters_per_expert * kBytesPerParameter / client.world_size;
  if (bytes <= kMaxBytes) return absl::OkStatus();
  return InvalidInput("--parameters ", options.parameters_per_expert, " needs ", bytes / 1e9,
                      " GB of expert memory on this rank, at most ", kMaxBytes / 1e9, " are taken");
}

// Returns the device of this rank's experts; none for host memory.
absl::StatusOr<std::optional<int32_t>> ExpertDevice(const TrainerOptions& options) {
  if (options.expert_memory != "gpu") return std::nullopt;
  const int32_t ranks_per_node =
      std::max(1, options.client.world_size / std::max(1, options.client.num_nodes));
  return DeviceMirror::ChooseDevice(options.client.rank % ranks_per_node);
}

// Does what a data loader does: forks. The child calls its copy of the client, destroys it and
// exits. errors: Unavailable if there is no child, Internal if a call in the child did anything.
absl::Status UseClientInForkedChild(std::unique_ptr<Client>& client) {
  const std::vector<int64_t> counts(static_cast<size_t>(client->placement().num_experts), 1);
  const pid_t child = fork();
  if (child < 0) return Unavailable("fork failed");
  if (child == 0) {
    const absl::StatusOr<BoundaryResult> boundary = client->StepBoundary(0);
    const bool nothing_done = client->Record(0, counts).ok() && boundary.ok() && !boundary->voted &&
                              !client->stats().connected;
    client->Close("child");
    client.reset();
    _exit(nothing_done ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) == child && status == 0) return absl::OkStatus();
  return Internal("a forked child could not leave the client alone");
}

class Trainer {
 public:
  Trainer(TrainerOptions options, StepLoads loads, std::unique_ptr<Client> client,
          std::unique_ptr<ControlChannel> job_channel)
      : options_(std::move(options)),
        loads_(std::move(loads)),
        experts_({.num_layers = client->placement().num_layers,
                  .num_local_slots = client->placement().num_local_slots,
                  .num_parameters = options_.parameters_per_expert}),
        client_(std::move(client)),
        job_channel_(std::move(job_channel)),
        static_placement_(
            Placement::Static(*Topology::Make({.num_layers = loads_.num_layers(),
                                               .num_experts = loads_.num_experts(),
                                               .num_slots = client_->placement().num_slots,
                                               .num_gpus = options_.client.world_size,
                                               .num_nodes = options_.client.num_nodes,
                                               .num_groups = options_.client.num_groups}))) {
    report_.job = options_.client.job;
    report_.run_id = client_->run_id();
    report_.world_size = options_.client.world_size;
    report_.split = options_.client.split == "batch" ? SplitMode::kBatch : SplitMode::kEqual;
    report_.num_layers = loads_.num_layers();
    report_.num_experts = loads_.num_experts();
    report_.num_slots = client_->placement().num_slots;
    report_.steps_asked = options_.num_steps;
    report_.even_step_seconds = absl::ToDoubleSeconds(options_.step_time);
  }

  // device: of the expert memory; absent: the host's.
  absl::Status Run(std::optional<int32_t> device) {
    absl::Status status = device.has_value() ? experts_.PutOnDevice(*device) : absl::OkStatus();
    if (status.ok()) status = RunSteps();
    report_.transport = client_->transport();  // after the last row: NCCL may have been given up
    client_->Close(status.ok() ? "finished" : std::string(status.message()));
    report_.error = std::string(status.message());
    if (options_.client.rank == 0 && !options_.report_path.empty()) {
      const absl::Status written = WriteRunReport(report_, options_.report_path);
      if (status.ok()) status = written;
    }
    return status;
  }

 private:
  // Returns the values of all ranks, in rank order.
  absl::StatusOr<std::vector<int64_t>> Gather(std::vector<int64_t> mine) {
    return GatherNumbers(*job_channel_, mine, options_.step_deadline);
  }

  absl::Status RunSteps() {
    experts_.Initialise(client_->placement());
    EPLB_RETURN_IF_ERROR(experts_.Publish());
    std::vector<ExpertTensorView> tensors = experts_.Tensors();
    for (ExpertTensorView& tensor : tensors) {
      if (options_.client.ahead) tensor.role = Role::kWeight;
    }
    EPLB_RETURN_IF_ERROR(client_->RegisterExperts(tensors));
    if (options_.client.rank == 0 && !options_.log_dir.empty()) {
      loads_log_.open(absl::StrCat(options_.log_dir, "/loads.jsonl"), std::ios::trunc);
    }
    int64_t num_run = 0;
    for (bool stop = false; num_run < options_.num_steps && !stop; ++num_run) {
      EPLB_RETURN_IF_ERROR(RunStep(num_run));
      EPLB_ASSIGN_OR_RETURN(stop, RankZeroSaysStop());
    }
    report_.steps_asked = num_run;
    EPLB_RETURN_IF_ERROR(SumWaits());
    return VerifyEverywhere(num_run - 1, nullptr);
  }

  // Returns the time that this rank's GPU would compute in the step; all ranks sleep for the
  // longest.
  double ComputeSeconds(const LoadMatrix& total, double own_tokens) const {
    const double mean = static_cast<double>(total.sum()) / options_.client.world_size;
    if (!(mean > 0)) return 0;
    return absl::ToDoubleSeconds(options_.step_time) * own_tokens / mean *
           options_.slow_rank.FactorOf(options_.client.rank);
  }

  // Returns true on every rank after the step at which rank 0 found the stop file.
  absl::StatusOr<bool> RankZeroSaysStop() {
    if (options_.stop_path.empty()) return false;
    const bool stop = options_.client.rank == 0 && access(options_.stop_path.c_str(), F_OK) == 0;
    EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> all, Gather({stop ? 1 : 0}));
    return all[0] == 1;
  }

  // Returns the counts that this rank records: its own, or the sum over ranks.
  absl::StatusOr<LoadMatrix> CountsToRecord(const LoadMatrix& own) {
    if (options_.client.reduce == "rank") return own;
    const std::vector<int64_t> mine(own.data(), own.data() + own.size());
    EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> all, Gather(mine));
    LoadMatrix sum = LoadMatrix::Zero(own.rows(), own.cols());
    for (size_t first = 0; first < all.size(); first += mine.size()) {
      sum += Eigen::Map<const LoadMatrix>(&all[first], own.rows(), own.cols());
    }
    return sum;
  }

  // Returns the tokens that this rank's GPU gets in each layer of the step.
  absl::StatusOr<std::vector<double>> RouteBatches(const LoadMatrix& total) {
    const PlacementView& placement = client_->placement();
    if (options_.client.split == "equal") return OwnGpuLoads(total, placement);
    std::vector<double> loads;
    std::vector<int64_t> quotas(static_cast<size_t>(placement.num_slots));
    for (int32_t layer = 0; layer < placement.num_layers; ++layer) {
      const std::span<const int64_t> totals(&total(layer, 0), static_cast<size_t>(total.cols()));
      EPLB_RETURN_IF_ERROR(client_->Split(layer, {.totals = totals}, quotas).status());
      EPLB_RETURN_IF_ERROR(client_->RecordSplit(layer, quotas));
      const auto own = quotas.begin() + placement.first_local_slot;
      loads.push_back(
          static_cast<double>(std::accumulate(own, own + placement.num_local_slots, int64_t{0})));
    }
    return loads;
  }

  absl::Status SumWaits() {
    EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> waits,
                          Gather({client_->stats().session_waits_over_1ms}));
    report_.session_waits_over_1ms = std::accumulate(waits.begin(), waits.end(), int64_t{0});
    return absl::OkStatus();
  }

  absl::Status RunStep(int64_t step) {
    const absl::Time begin = absl::Now();
    if (report_.steps.empty()) {
      began_at_ = begin;
      report_.began_at = absl::ToDoubleSeconds(begin - absl::UnixEpoch());
    }
    const LoadMatrix total = loads_.Total(step);
    const LoadMatrix own =
        StepLoads::OfRank(total, options_.client.rank, options_.client.world_size);
    if (step == options_.hang_at_step) absl::SleepFor(options_.hang_time);
    if (step == options_.fork_at_step) EPLB_RETURN_IF_ERROR(UseClientInForkedChild(client_));
    EPLB_ASSIGN_OR_RETURN(const LoadMatrix recorded, CountsToRecord(own));
    for (int32_t layer = 0; layer < recorded.rows(); ++layer) {
      const std::span<const int64_t> counts(&recorded(layer, 0),
                                            static_cast<size_t>(recorded.cols()));
      EPLB_RETURN_IF_ERROR(client_->Record(layer, counts));
    }
    if (!options_.client.ahead) {
      experts_.Update(step, client_->placement());
      EPLB_RETURN_IF_ERROR(experts_.Publish());
    }

    EPLB_ASSIGN_OR_RETURN(const std::vector<double> own_loads, RouteBatches(total));
    std::vector<int64_t> mine;
    double own_tokens = 0;
    for (const double tokens : own_loads) {
      mine.push_back(std::bit_cast<int64_t>(tokens));
      own_tokens += tokens;
    }
    EPLB_RETURN_IF_ERROR(client_->RecordStepTime(ComputeSeconds(total, own_tokens)));
    EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> gathered, Gather(mine));
    const MeasuredLoads measured =
        MeasureLoads(gathered, loads_.num_layers(), options_.client.world_size, options_.slow_rank);
    const absl::Duration work = absl::Now() - begin;
    WaitUntil(begin + options_.step_time * measured.slowdown);

    EPLB_ASSIGN_OR_RETURN(const Load load, Load::FromCounts(total));
    EPLB_ASSIGN_OR_RETURN(const Evaluation unmoved, Evaluate(load, static_placement_));
    const Evaluation without = EvaluateWithoutEplb(load, static_placement_.topology().num_gpus());
    report_.steps.push_back({.step = step,
                             .version = client_->placement().version,
                             .balancedness = measured.balancedness,
                             .balancedness_static = unmoved.mean_balancedness,
                             .balancedness_without_eplb = without.mean_balancedness,
                             .peak_tokens = measured.peak_tokens,
                             .peak_tokens_without_eplb = without.peak_load,
                             .began = absl::ToDoubleSeconds(begin - began_at_),
                             .work_seconds = absl::ToDoubleSeconds(work)});
    WriteLoads(step, total);
    EPLB_ASSIGN_OR_RETURN(const BoundaryResult boundary,
                          client_->StepBoundary(step, experts_.stream()));
    if (boundary.switched) EPLB_RETURN_IF_ERROR(experts_.Fetch());
    report_.boundary_seconds += boundary.pause_seconds;
    report_.steps.back().boundary_seconds = boundary.pause_seconds;
    report_.steps.back().seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    if (boundary.switched) EPLB_RETURN_IF_ERROR(RecordSwitch(step, boundary));
    ShowProgress(step);
    return absl::OkStatus();
  }

  // After a switch: every rank verifies its memory, and the ranks add up the costs of the switch.
  absl::Status RecordSwitch(int64_t step, const BoundaryResult& boundary) {
    SwitchRecord record{.step = step,
                        .version = boundary.version,
                        .decided_first_step = boundary.decided_first_step,
                        .decided_last_step = boundary.decided_last_step,
                        .decision = boundary.decision,
                        .policy = boundary.policy,
                        .asked_by = boundary.asked_by,
                        .reason = boundary.reason};
    const int64_t pause = static_cast<int64_t>(boundary.switch_seconds * 1e9);
    EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> costs,
                          Gather({boundary.received_bytes, pause}));
    for (size_t i = 0; i < costs.size(); i += 2) {
      record.bytes_moved += costs[i];
      record.pause_seconds =
          std::max(record.pause_seconds, static_cast<double>(costs[i + 1]) * 1e-9);
    }
    EPLB_RETURN_IF_ERROR(VerifyEverywhere(step, &record.bytes_verified));
    report_.switches.push_back(std::move(record));
    return absl::OkStatus();
  }

  absl::Status VerifyEverywhere(int64_t last_step, int64_t* verified) {
    const int64_t last_update = options_.client.ahead ? -1 : last_step;
    const absl::StatusOr<int64_t> own = experts_.Verify(last_update, client_->placement());
    const int64_t value = own.ok() ? *own : -1;
    const absl::StatusOr<std::vector<int64_t>> all = Gather({value});
    if (!own.ok()) return own.status();
    if (!all.ok()) return all.status();
    int64_t sum = 0;
    for (size_t rank = 0; rank < all->size(); ++rank) {
      if ((*all)[rank] < 0) {
        return DataLoss("rank ", rank, " found a wrong byte after step ", last_step);
      }
      sum += (*all)[rank];
    }
    report_.bytes_verified += sum;
    if (verified != nullptr) *verified = sum;
    return absl::OkStatus();
  }

  static void WaitUntil(absl::Time time) {
    const absl::Duration left = time - absl::Now();
    if (left > absl::ZeroDuration()) absl::SleepFor(left);
  }

  void WriteLoads(int64_t step, const LoadMatrix& total) {
    if (!loads_log_.is_open()) return;
    loads_log_ << "{\"first_step\":" << step << ",\"last_step\":" << step << ",\"load\":[";
    for (Eigen::Index layer = 0; layer < total.rows(); ++layer) {
      loads_log_ << (layer == 0 ? "[" : ",[");
      for (Eigen::Index expert = 0; expert < total.cols(); ++expert) {
        loads_log_ << (expert == 0 ? "" : ",") << total(layer, expert);
      }
      loads_log_ << ']';
    }
    loads_log_ << "]}\n";
  }

  static std::string FigureText(const std::optional<double>& figure) {
    return figure ? absl::StrFormat("%.3f", *figure) : "-";
  }

  void ShowProgress(int64_t step) const {
    constexpr int64_t kProgressEvery = 40;
    if (!options_.show_progress || options_.client.rank != 0 || (step + 1) % kProgressEvery != 0)
      return;
    const StepRecord& record = report_.steps.back();
    absl::FPrintF(stderr, "step %5d/%d  balancedness %s  without EPLB %s  placement version %d\n",
                  step + 1, options_.num_steps, FigureText(record.balancedness),
                  FigureText(record.balancedness_without_eplb), record.version);
  }

  TrainerOptions options_;
  StepLoads loads_;
  ExpertState experts_;  // outlives the client, which has its tensors
  std::unique_ptr<Client> client_;
  std::unique_ptr<ControlChannel> job_channel_;
  Placement static_placement_;
  std::ofstream loads_log_;
  absl::Time began_at_ = absl::UnixEpoch();  // start of the first step
  RunReport report_;
};

}  // namespace

absl::Status CheckTrainerOptions(const TrainerOptions& options) {
  const std::tuple<const char*, int64_t, int64_t> least[] = {
      {"--world", options.client.world_size, 1},
      {"--rank", options.client.rank, 0},
      {"--nodes", options.client.num_nodes, 1},
      {"--groups", options.client.num_groups, 1},
      {"--hang-at-step", options.hang_at_step.value_or(0), 0},
      {"--fork-at-step", options.fork_at_step.value_or(0), 0}};
  for (const auto& [flag, number, at_least] : least) {
    if (number >= at_least) continue;
    return InvalidInput(flag, " is ", number, ", expected at least ", at_least);
  }
  if (options.client.rank < options.client.world_size) return absl::OkStatus();
  return InvalidInput("--rank is ", options.client.rank, ", expected 0..",
                      options.client.world_size - 1);
}

absl::Status RunTrainer(TrainerOptions options) {
  EPLB_RETURN_IF_ERROR(CheckTrainerOptions(options));
  EPLB_ASSIGN_OR_RETURN(StepLoads loads, ReadTrace(options.trace_path));
  options.client = ClientOptionsOf(options, loads);
  EPLB_RETURN_IF_ERROR(CheckGroups(options.client));
  EPLB_RETURN_IF_ERROR(CheckMemory(options));
  EPLB_ASSIGN_OR_RETURN(const std::optional<int32_t> device, ExpertDevice(options));
  EPLB_ASSIGN_OR_RETURN(const AllGather all_gather, MakeRendezvous(options));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<Client> client,
                        Client::Connect(options.client, all_gather));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<ControlChannel> job_channel,
                        MakeJobChannel(options, all_gather));
  return Trainer(options, std::move(loads), std::move(client), std::move(job_channel)).Run(device);
}

}  // namespace eplb
