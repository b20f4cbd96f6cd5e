// eplb-trainer: one rank of the demonstration job. Exit codes: 0 ok, 1 failed, 2 usage or unusable
// input, 8 verification failed.
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/command_line.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "deploy/examples/replay_trainer/device_mirror.h"
#include "deploy/examples/replay_trainer/trainer.h"

#include <CLI/CLI.hpp>

namespace eplb {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kVerificationFailed = 8;

// Flags of the job and of its model's shape.
void AddJobOptions(CLI::App& app, TrainerOptions& options) {
  app.add_option("--rank", options.client.rank, "This process, 0..world-1")->required();
  app.add_option("--world", options.client.world_size,
                 "Processes of the job, one GPU position each")
      ->required();
  app.add_option("--endpoint", options.client.endpoint,
                 "Address of eplbd: HOST:PORT or unix:PATH, or several, \"A,B\"");
  app.add_option("--tls-ca", options.client.tls.ca,
                 "PEM file of the CA that signed eplbd's certificate");
  app.add_option("--tls-cert", options.client.tls.cert, "PEM file; this rank's certificate");
  app.add_option("--tls-key", options.client.tls.key, "PEM file; its key");
  app.add_option("--tls-server-name", options.client.tls.server_name,
                 "Name in eplbd's certificate; default: the endpoint's host");
  app.add_option("--rendezvous", options.rendezvous,
                 "HOST:PORT that rank 0 listens on; default: through the daemon");
  app.add_option("--job", options.client.job, "Name of the job")->capture_default_str();
  app.add_option("--launch-id", options.client.run_id,
                 "Name of this run, equal on all ranks and different for each run; default: "
                 "EPLB_LAUNCH_ID, else torchrun's or SLURM's. Without --rendezvous it is needed");
  app.add_flag("--take-over", options.client.take_over,
               "Replace a run of this job although its steps advance");
  app.add_option("--trace", options.trace_path,
                 "Recorded router trace (JSON lines of load windows)")
      ->required();
  app.add_option("--steps", options.num_steps, "Optimizer steps to run")
      ->required()
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--slots", options.client.num_slots,
                 "Physical experts per layer; default: as many as experts");
  app.add_option("--nodes", options.client.num_nodes, "NVLink domains")->capture_default_str();
  app.add_option("--groups", options.client.num_groups, "Expert groups of the router")
      ->capture_default_str();
}

// Flags of the training, its faults and its files.
void AddRunOptions(CLI::App& app, TrainerOptions& options, double& step_ms,
                   std::string& slow_rank) {
  app.add_option("--transport", options.client.transport,
                 "Transport of the rows; peer (CUDA IPC), nccl and peer+nccl move GPU memory, auto "
                 "takes host unless --expert-memory is gpu")
      ->check(CLI::IsMember(
          std::vector<std::string>(std::begin(kTransportNames), std::end(kTransportNames))))
      ->capture_default_str();
  app.add_option(
         "--expert-memory", options.expert_memory,
         "Memory of the experts; auto: host for transports auto and host, even if there is a GPU, "
         "else gpu. Which GPU: EPLB_TRAINER_DEVICE, else the rank on its node modulo their number")
      ->check(CLI::IsMember({"auto", "host", "gpu"}))
      ->capture_default_str();
  app.add_option("--step-ms", step_ms,
                 "Milliseconds of a perfectly balanced step; a real one lasts that / balancedness");
  app.add_option(
      "--slow-rank", slow_rank,
      "RANK:FACTOR: that rank's GPU takes FACTOR times as long for a token; with --step-ms");
  app.add_option("--parameters", options.parameters_per_expert,
                 "Parameters of an expert (14 bytes each)")
      ->check(CLI::Range(1, 1 << 26))
      ->capture_default_str();
  app.add_flag("--frozen", options.client.ahead,
               "The experts are not trained: their rows move while the next steps run");
  app.add_option("--vote-every", options.client.vote_every,
                 "Steps between votes while no proposal is known")
      ->capture_default_str();
  app.add_option("--report-every", options.client.report_every, "Steps in the first load windows")
      ->capture_default_str();
  app.add_option("--reduce", options.client.reduce,
                 "rank: each rank reports its counts; root: rank 0 reports the sum")
      ->check(CLI::IsMember({"rank", "root"}))
      ->capture_default_str();
  app.add_option(
         "--split", options.client.split,
         "How tokens are split among replicas: in equal shares, or exactly, each step as a batch")
      ->check(CLI::IsMember({"equal", "batch"}))
      ->capture_default_str();
  app.add_option("--bind-address", options.client.bind_address,
                 "Numeric address at which other ranks reach this one")
      ->capture_default_str();
  app.add_option("--stop-file", options.stop_path,
                 "End the job after the step at which rank 0 finds this file");
  app.add_option("--hang-at-step", options.hang_at_step,
                 "Do nothing on this rank for 3 s before that step");
  app.add_option("--fork-at-step", options.fork_at_step,
                 "Fork a child that calls the client, as data loaders do");
  app.add_option("--initial-placement", options.client.initial_placement,
                 "Placement file or placements.jsonl to begin with, or static");
  app.add_option("--log-dir", options.log_dir,
                 "Directory for rank-R.jsonl, placements.jsonl and loads.jsonl");
  app.add_option("--report-json", options.report_path, "Rank 0 writes the run's report here");
  app.add_flag("--progress", options.show_progress, "Rank 0 prints its progress on stderr");
}

// Settles "auto", and looks for a GPU if one is needed, so that an error can name the flag that
// needs it and the one that does not.
absl::Status SettleExpertMemory(TrainerOptions& options) {
  const bool by_transport = options.expert_memory == "auto" && options.client.transport != "auto" &&
                            options.client.transport != "host";
  if (by_transport) options.expert_memory = "gpu";
  if (options.expert_memory != "gpu") return absl::OkStatus();
  absl::Status found = DeviceMirror::ChooseDevice(/*local_rank=*/0).status();
  // EPLB_TRAINER_DEVICE is wrong; there may still be a GPU.
  if (found.ok() || absl::IsInvalidArgument(found)) return found;
  const std::string asked = by_transport ? absl::StrCat("--transport ", options.client.transport,
                                                        " implies --expert-memory gpu")
                                         : "--expert-memory gpu";
  const char* const without = by_transport ? "--transport host" : "--expert-memory host";
  return absl::Status(found.code(),
                      absl::StrCat(asked, ", but there is no GPU to put the experts on: ",
                                   found.message(), "; ", without, " needs none"));
}

// Reads --step-ms; NaN is out of range too.
absl::Status ReadStepTime(double step_ms, TrainerOptions& options) {
  constexpr double kMost = 1e6;
  if (!(step_ms >= 0 && step_ms <= kMost)) {
    return InvalidInput("--step-ms is ", step_ms, ", expected 0..", kMost);
  }
  options.step_time = absl::Milliseconds(step_ms);
  return absl::OkStatus();
}

// Reads --slow-rank; empty for none.
absl::Status ReadSlowRank(const std::string& text, TrainerOptions& options) {
  if (text.empty()) return absl::OkStatus();
  SlowRank& slow = options.slow_rank;
  const size_t colon = text.find(':');
  if (colon != std::string::npos && absl::SimpleAtoi(text.substr(0, colon), &slow.rank) &&
      absl::SimpleAtod(text.substr(colon + 1), &slow.factor) && slow.rank >= 0 &&
      slow.rank < options.client.world_size && slow.factor >= 1 && slow.factor <= 100) {
    return absl::OkStatus();
  }
  return InvalidInput("--slow-rank is \"", text, "\", expected RANK:FACTOR with a rank in 0..",
                      options.client.world_size - 1, " and a factor in 1..100");
}

int Main(int argc, char** argv) {
  TrainerOptions options;
  options.client.job = "demo";
  double step_ms = 0;
  std::string slow_rank;
  CLI::App app{"Demonstration trainer: replays a router trace and verifies every byte"};
  WrapHelp(app);
  app.set_version_flag("--version", "eplb-trainer " EPLB_VERSION);
  AddJobOptions(app, options);
  AddRunOptions(app, options, step_ms, slow_rank);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& told) {  // --help, --version
    return app.exit(told);
  } catch (const CLI::ParseError& error) {  // CLI11 reports by exceptions; they end here
    std::fprintf(stderr, "eplb-trainer: %s (see eplb-trainer --help)\n",
                 ExplainParseError(app, error).c_str());
    return kUsage;
  }
  absl::Status status = CheckTrainerOptions(options);
  if (status.ok()) status = ReadStepTime(step_ms, options);
  if (status.ok()) status = ReadSlowRank(slow_rank, options);
  if (status.ok()) status = SettleExpertMemory(options);
  if (status.ok()) status = RunTrainer(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "eplb-trainer: rank %d: %s\n", options.client.rank,
               Printable({status.message().data(), status.message().size()}).c_str());
  if (absl::IsDataLoss(status)) return kVerificationFailed;
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? kUsage : kFailed;
}

}  // namespace
}  // namespace eplb

// An exception of CLI11 while options are declared is a bug of this file and must end the program.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return eplb::Main(argc, argv); }
