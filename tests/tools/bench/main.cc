// eplb-bench: loads an eplbd of its own with many sessions and prints the figures as JSON. Exit
// codes: 0 measured, 1 failed, 2 usage.
#include <cstdio>

#include "tests/tools/bench/commands.h"
#include "tests/tools/bench/daemon.h"
#include "tests/tools/bench/raw_sink.h"

#include <CLI/CLI.hpp>

namespace eplb::bench {
namespace {

void AddOptions(CLI::App& app, Options& options, double& hold_seconds) {
  app.add_option("--eplbd", options.eplbd, "The daemon's program; default: beside this one");
  app.add_option("--sessions", options.num_sessions, "Ranks of the job")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--connections", options.num_connections, "0: one per session")
      ->check(CLI::Range(0, 100000));
  app.add_option("--threads", options.num_threads, "Of the load generator")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--layers", options.num_layers, "MoE layers")->capture_default_str();
  app.add_option("--experts", options.num_experts, "Experts per layer")->capture_default_str();
  app.add_option("--slots", options.num_slots, "Physical experts per layer")->capture_default_str();
  app.add_option("--gpus", options.num_gpus,
                 "GPUs of an EP group; fanout, frozen: sessions must be a multiple")
      ->capture_default_str();
  app.add_option("--windows", options.num_windows, "ingest: reports per session and round")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--rounds", options.num_rounds, "Repetitions")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--frozen", options.num_frozen, "frozen: sessions that never read")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--jobs", options.num_jobs, "jobs: how many, one after the other")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--hold-seconds", hold_seconds,
                 "sessions: how long they stay; jobs: wait at the end")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}

int Main(int argc, char** argv) {
  Options options;
  double hold_seconds = 10;
  CLI::App app{"Load generator for eplbd"};
  app.require_subcommand(1);
  app.fallthrough();
  AddOptions(app, options, hold_seconds);
  const CLI::App* ingest = app.add_subcommand("ingest", "Reports a second against a raw sink");
  const CLI::App* fanout =
      app.add_subcommand("fanout", "Proposal to every rank, and all PREPAREDs");
  const CLI::App* decide =
      app.add_subcommand("decide", "CPU of the daemon from a load window to auto's proposal");
  const CLI::App* sessions = app.add_subcommand("sessions", "Memory of sessions that are held");
  const CLI::App* frozen = app.add_subcommand("frozen", "fanout beside ranks that never read");
  const CLI::App* jobs = app.add_subcommand("jobs", "Memory after jobs have come and gone");
  const CLI::App* raw_sink = app.add_subcommand("raw-sink", "The baseline of ingest: a server");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {  // CLI11 reports by exceptions; they end here
    std::fprintf(stderr, "eplb-bench: %s\n", error.what());
    return 2;
  }
  const int num_sessions = options.num_sessions + (frozen->parsed() ? options.num_frozen : 0);
  const absl::Status files = AllowFilesFor(ConnectionsOf(options, num_sessions));
  if (raw_sink->parsed()) return RunRawSink();
  if (!files.ok()) {
    std::fprintf(stderr, "eplb-bench: %s\n", std::string(files.message()).c_str());
    return 1;
  }
  options.hold = absl::Seconds(hold_seconds);
  const auto measure = ingest->parsed()     ? MeasureIngest
                       : fanout->parsed()   ? MeasureFanOut
                       : decide->parsed()   ? MeasureDecide
                       : sessions->parsed() ? MeasureSessions
                       : jobs->parsed()     ? MeasureJobs
                                            : MeasureFrozen;
  const absl::StatusOr<nlohmann::ordered_json> figures = measure(options);
  if (!figures.ok()) {
    std::fprintf(stderr, "eplb-bench: %s\n", std::string(figures.status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", figures->dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace eplb::bench

// An exception of CLI11 while options are declared is a bug of this file and must end the program.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return eplb::bench::Main(argc, argv); }
