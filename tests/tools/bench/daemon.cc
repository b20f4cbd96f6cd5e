#include "tests/tools/bench/daemon.h"

#include <sys/resource.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace eplb::bench {

void ProposalTimes::OnLine(std::string_view line) {
  const absl::Time now = absl::Now();
  if (line.find("\"event\":\"proposed\"") == std::string_view::npos) return;
  const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
  if (!entry.is_object() || !entry.contains("version")) return;
  const std::lock_guard lock(mutex_);
  times_[entry["version"].get<int64_t>()] = now;
}

absl::Time ProposalTimes::Of(int64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = times_.find(version);
  return found == times_.end() ? absl::InfinitePast() : found->second;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> StartDaemon(
    const Options& options, const std::vector<std::string>& environment, ProposalTimes* proposals) {
  std::vector<std::string> variables = {
      absl::StrCat("EPLB_MIGRATION_LAYERS_PER_CHUNK=", options.num_layers),
      "EPLB_MIGRATION_MAX_PAUSE=1h",
      "EPLB_REPORT_EVERY_STEPS=1",
      "EPLB_LIMITS_MESSAGES_PER_SECOND=1000000",
      "EPLB_LIMITS_MAX_SESSIONS=100000",
      "EPLB_LIMITS_MAX_SESSIONS_PER_PEER=100000"};
  variables.insert(variables.end(), environment.begin(), environment.end());
  const std::string program = options.eplbd.empty() ? BesideThisProgram("eplbd") : options.eplbd;
  return ChildProcess::Start(
      {program, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "memory"}, variables,
      [proposals](std::string_view line) {
        if (proposals != nullptr) proposals->OnLine(line);
      });
}

BenchJob JobOf(const Options& options, const std::string& name, int world_size) {
  return {.name = name,
          .shape = {.num_layers = options.num_layers,
                    .num_experts = options.num_experts,
                    .num_slots = options.num_slots,
                    .num_gpus = world_size % options.num_gpus == 0 ? options.num_gpus : 1},
          .world_size = world_size};
}

int ConnectionsOf(const Options& options, int num_sessions) {
  return options.num_connections > 0 ? options.num_connections : num_sessions;
}

absl::Status AllowFilesFor(int num_connections) {
  constexpr rlim_t kOthers = 256;
  const rlim_t needed = static_cast<rlim_t>(num_connections) + kOthers;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      num_connections, " connections need ", needed, " open files, the hard limit is ",
      limit.rlim_max, ": raise it (ulimit -Hn) or share connections with --connections"));
}

}  // namespace eplb::bench
