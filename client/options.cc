// Checks the options of a client, and reads those that the environment gives.
#include "client/options.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string_view>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/endpoint_source.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "client/rows/control/socket.h"
#include "proto/wire/endpoint.h"
#include "proto/wire/names.h"

namespace eplb {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread sets it
  return value == nullptr ? "" : value;
}

bool IsOn(const char* name) {
  const std::string value = Environment(name);
  return !value.empty() && value != "0";
}

// Name of this run in the environment, and the variable that has it; empty without one.
struct Run {
  const char* variable = "";
  std::string id = {};
};

Run FromEnvironment() {
  if (std::string id = Environment("EPLB_LAUNCH_ID"); !id.empty()) return {"EPLB_LAUNCH_ID", id};
  // Each srun inside an allocation is a step, and a run of its own.
  for (const auto& [id_name, step_name, restarts_name] :
       {std::tuple{"TORCHELASTIC_RUN_ID", "", "TORCHELASTIC_RESTART_COUNT"},
        {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}}) {
    const std::string id = Environment(id_name);
    if (id.empty() || id == "none") continue;
    const std::string step = *step_name == '\0' ? "" : Environment(step_name);
    const std::string restarts = Environment(restarts_name);
    return {.variable = id_name,
            .id = absl::StrCat(id, step.empty() ? "" : ".", step, "-",
                               restarts.empty() ? "0" : restarts)};
  }
  return {};
}

absl::Status Bad(std::string_view field, std::string_view what) {
  return InvalidInput(std::string(field), ": ", std::string(what));
}

absl::Status CheckName(std::string_view field, const std::string& text, size_t max_length) {
  if (wire::CheckPlainName(field, text, max_length).ok()) return absl::OkStatus();
  return Bad(field, absl::StrCat("\"", Clipped(text, 140), "\", expected 1..", max_length,
                                 " characters of [A-Za-z0-9._-]"));
}

absl::Status CheckLaunchId(const ClientOptions& o) {
  constexpr size_t kMaxLaunchId = wire::kMaxNameLength - 1 - kDrawnLength;
  if (!o.run_id.empty()) return CheckName("run_id", o.run_id, kMaxLaunchId);
  const Run run = FromEnvironment();
  if (run.id.empty()) return absl::OkStatus();
  absl::Status status = CheckName(run.variable, run.id, kMaxLaunchId);
  if (status.ok()) return status;
  return InvalidInput(status.message(),
                      std::string_view(run.variable) == "EPLB_LAUNCH_ID"
                          ? ""
                          : ", its step and count of restarts included; or set EPLB_LAUNCH_ID");
}

absl::Status CheckRanks(const ClientOptions& o) {
  EPLB_RETURN_IF_ERROR(GridOf(o).status());
  if (o.rank < 0 || o.rank >= o.world_size) {
    return Bad("rank", absl::StrCat(o.rank, ", expected 0..", o.world_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckSteps(const ClientOptions& o) {
  for (const auto& [field, number, least] :
       {std::tuple{"first_step", o.first_step, int64_t{0}},
        {"vote_every", int64_t{o.vote_every}, 1},
        {"report_every", int64_t{o.report_every}, 1},
        {"layers_per_chunk", int64_t{o.layers_per_chunk}, 0}}) {
    if (number < least) return Bad(field, absl::StrCat(number, ", expected >= ", least));
  }
  if (o.report_max_steps >= o.report_every) return absl::OkStatus();
  return Bad("report_max_steps",
             absl::StrCat(o.report_max_steps, ", expected >= report_every ", o.report_every));
}

absl::Status CheckEndpoints(const std::string& endpoint) {
  return IsEndpointSource(endpoint) ? CheckEndpointSource(endpoint)
                                    : wire::SplitEndpoints(endpoint).status();
}

absl::Status CheckDaemon(const ClientOptions& o) {
  if (o.endpoint.empty()) {
    return o.require_daemon ? Bad("require_daemon", "is set, but endpoint is empty")
                            : absl::OkStatus();
  }
  return CheckEndpoints(o.endpoint);
}

absl::Status CheckDeadlines(const ClientOptions& o) {
  for (const auto& [field, deadline] : {std::pair{"start_deadline", o.start_deadline},
                                        {"vote_deadline", o.vote_deadline},
                                        {"transfer_deadline", o.transfer_deadline}}) {
    if (deadline <= absl::ZeroDuration() || deadline > absl::Hours(24)) {
      return Bad(field,
                 absl::StrCat(absl::FormatDuration(deadline), ", expected above 0, at most 24h"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

TopologyOptions ShapeOf(const ClientOptions& o) {
  return {.num_layers = o.num_layers,
          .num_experts = o.num_experts,
          .num_slots = o.num_slots,
          .num_gpus = o.num_gpus,
          .num_nodes = o.num_nodes,
          .num_groups = o.num_groups};
}

absl::StatusOr<RankGrid> GridOf(const ClientOptions& o) {
  return RankGrid::Make({.world_size = o.world_size,
                         .num_gpus = o.num_gpus,
                         .pipeline_parallel_size = o.pipeline_parallel_size,
                         .expert_tensor_parallel = o.expert_tensor_parallel});
}

absl::StatusOr<Topology> CheckOptions(const ClientOptions& o) {
  EPLB_RETURN_IF_ERROR(CheckName("job", o.job, wire::kMaxNameLength));
  EPLB_RETURN_IF_ERROR(CheckLaunchId(o));
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(ShapeOf(o)));
  EPLB_RETURN_IF_ERROR(CheckRanks(o));
  EPLB_RETURN_IF_ERROR(CheckSteps(o));
  EPLB_RETURN_IF_ERROR(CheckDeadlines(o));
  const bool known = std::ranges::find(kTransportNames, o.transport) != std::end(kTransportNames);
  if (!known) {
    return Bad("transport", absl::StrCat("\"", o.transport, "\", expected ",
                                         absl::StrJoin(kTransportNames, ", ")));
  }
  if (o.reduce != "rank" && o.reduce != "root") {
    return Bad("reduce", absl::StrCat("\"", o.reduce, "\", expected rank or root"));
  }
  if (o.split != "equal" && o.split != "batch") {
    return Bad("split", absl::StrCat("\"", o.split, "\", expected equal or batch"));
  }
  EPLB_RETURN_IF_ERROR(CheckDaemon(o));
  if (!o.endpoint.empty()) {
    const absl::Status tls = wire::CheckTlsFiles(TlsFilesOf(o.tls));
    if (!tls.ok()) return Bad("tls", {tls.message().data(), tls.message().size()});
  }
  if (!IsNumericAddress(o.bind_address)) {
    return Bad("bind_address",
               absl::StrCat("\"", o.bind_address, "\", expected a numeric address"));
  }
  return topology;
}

std::string LaunchIdOf(const ClientOptions& options) {
  return options.run_id.empty() ? FromEnvironment().id : options.run_id;
}

std::string GivenLaunchId(const ClientOptions& options) {
  return options.run_id.empty() ? Environment("EPLB_LAUNCH_ID") : options.run_id;
}

std::string RunOf(const std::string& launch_id, const std::string& drawn) {
  return launch_id.empty() ? drawn : absl::StrCat(launch_id, ".", drawn);
}

absl::Status CheckDaemonAllGather(const ClientOptions& o) {
  if (o.job == ClientOptions().job) {
    return Bad("job", absl::StrCat("\"", o.job,
                                   "\" is shared by all unnamed jobs; name this job so that its "
                                   "ranks do not join another one"));
  }
  EPLB_RETURN_IF_ERROR(CheckName("job", o.job, wire::kMaxNameLength));
  EPLB_RETURN_IF_ERROR(CheckLaunchId(o));
  if (LaunchIdOf(o).empty()) {
    return Bad("run_id",
               "empty, and neither EPLB_LAUNCH_ID nor torchrun nor SLURM names this run: two runs "
               "of the job could meet at the daemon; set EPLB_LAUNCH_ID, equal on all ranks and "
               "different for each run");
  }
  if (o.endpoint.empty()) return Bad("endpoint", "empty, expected that of an eplbd");
  return CheckEndpoints(o.endpoint);
}

absl::Status FindDaemons(ClientOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const std::string found,
                        ReadEndpointSource(options.endpoint, {.deadline = options.start_deadline}));
  const absl::StatusOr<std::vector<std::string>> endpoints = wire::SplitEndpoints(found);
  if (!endpoints.ok()) return InvalidInput(options.endpoint, ": ", endpoints.status().message());
  options.endpoint = absl::StrJoin(*endpoints, ",");
  return absl::OkStatus();
}

std::vector<std::string> EndpointsOf(const ClientOptions& options) {
  return wire::SplitEndpoints(options.endpoint).value();
}

SplitMode SplitOf(const ClientOptions& options) {
  return options.split == "batch" ? SplitMode::kBatch : SplitMode::kEqual;
}

bool TakesOver(const ClientOptions& options) { return options.take_over || IsOn("EPLB_TAKE_OVER"); }

wire::TlsFiles TlsFilesOf(const DaemonTls& tls) {
  return wire::WithEnvironment(
      {.ca = tls.ca, .cert = tls.cert, .key = tls.key, .server_name = tls.server_name});
}

bool DisabledByEnvironment() { return IsOn("EPLB_DISABLE"); }

std::string DrawHex(int num_bytes) {
  std::random_device device;
  std::string hex;
  for (int i = 0; i < num_bytes; ++i) hex += absl::StrFormat("%02x", device() & 0xffU);
  return hex;
}

}  // namespace eplb
