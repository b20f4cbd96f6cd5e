#include "client/first_placement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/options.h"
#include "client/session/log_line.h"
#include "client/session/unary_calls.h"
#include "client/start.h"
#include "proto/wire/placement_files.h"

namespace eplb {

namespace {

constexpr absl::Duration kQueryDeadline = absl::Seconds(5);

RunningPlacement Running(int64_t version, Placement placement) {
  const Digest digest = DigestOf(placement);
  return {.version = version,
          .digest = digest,
          .placement = std::make_shared<const Placement>(std::move(placement))};
}

// Returns the placement that initial_placement names: the static layout, or a file's.
absl::StatusOr<RunningPlacement> Named(const std::string& path, const Topology& topology) {
  if (path == kStaticPlacement) return Running(0, Placement::Static(topology));
  int64_t version = 0;
  std::optional<Placement> placement;
  if (absl::EndsWith(path, ".jsonl")) {
    EPLB_ASSIGN_OR_RETURN(std::vector<LoggedPlacement> log, ReadPlacementsLog(path));
    if (log.empty()) return InvalidInput(path, ": no placement in it");
    version = log.back().version;
    placement = std::move(log.back().placement);
  } else {
    EPLB_ASSIGN_OR_RETURN(placement, ReadPlacementFile(path));
  }
  if (!(placement->topology() == topology)) {
    return InvalidInput(path, ": its placement has another shape than the job");
  }
  return Running(version, *std::move(placement));
}

absl::Duration QueryDeadline(const ClientOptions& options) {
  return std::min(kQueryDeadline, options.start_deadline);
}

// Asks the daemons for the job's placement, each with a deadline.
absl::StatusOr<StoredPlacement> Ask(const ClientOptions& options) {
  return FetchPlacement(EndpointsOf(options), TlsFilesOf(options.tls), options.job,
                        QueryDeadline(options));
}

// A version that stands for nothing else. A number that was only read could be given to two
// runs that start at the same time; one that was reserved is this run's alone.
int64_t FreshVersion(const ClientOptions& options, const StoredPlacement& stored) {
  const absl::StatusOr<int64_t> reserved = ReserveVersion(
      EndpointsOf(options), TlsFilesOf(options.tls), options.job, QueryDeadline(options));
  if (reserved.ok()) return std::max(*reserved, stored.next_version);
  if (!absl::IsUnimplemented(reserved.status()) && !absl::IsNotFound(reserved.status())) {
    LogLine(absl::StrCat("eplbd at ", stored.endpoint, " reserves no version for job ", options.job,
                         ": ", reserved.status().message(), "; the first placement is version ",
                         stored.next_version, ", which another run may use too"));
  }
  return stored.next_version;
}

// NotFound is an answer: the daemon does not know the job yet.
absl::Status CheckRequired(const ClientOptions& options, const absl::Status& answer) {
  if (!options.require_daemon || answer.ok() || absl::IsNotFound(answer)) return absl::OkStatus();
  return absl::Status(answer.code(), absl::StrCat("require_daemon: no answer from eplbd at ",
                                                  options.endpoint, ": ", answer.message()));
}

// A placement that an option names is another one than those that the job's numbers stand for,
// unless the daemon knows it.
absl::StatusOr<RunningPlacement> Numbered(RunningPlacement first, const ClientOptions& options) {
  if (options.endpoint.empty()) return first;
  const absl::StatusOr<StoredPlacement> stored = Ask(options);
  EPLB_RETURN_IF_ERROR(CheckRequired(options, stored.status()));
  if (stored.ok()) {
    const bool known = stored->body.digest == first.digest;
    first.version =
        std::max(first.version, known ? stored->body.version : FreshVersion(options, *stored));
  } else if (!absl::IsNotFound(stored.status())) {
    LogLine(absl::StrCat("no answer from eplbd at ", options.endpoint, ": ",
                         stored.status().message(), "; initial_placement ",
                         options.initial_placement, " starts as version ", first.version));
  }
  return first;
}

StartFields ExtraOf(const RunningPlacement& running, size_t num_bytes) {
  return {{"drawn_run_id", DrawHex(static_cast<int>(kDrawnLength / 2))},
          {"secret", DrawHex(32)},
          {"version", absl::StrCat(running.version)},
          {"digest", running.digest.Hex()},
          {"placement_bytes", absl::StrCat(num_bytes)}};
}

absl::StatusOr<int64_t> FindNumber(const StartFields& fields, std::string_view name) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, FindField(fields, name));
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  return FailedPrecondition("start: rank 0 sent \"", text, "\" for ", std::string(name));
}

// Rank 0's placement on every rank, with its digest checked.
absl::StatusOr<RunningPlacement> Receive(const StartFields& rank0, const std::string& bytes,
                                         int32_t rank, const Topology& topology,
                                         const AllGather& all_gather) {
  EPLB_ASSIGN_OR_RETURN(const int64_t version, FindNumber(rank0, "version"));
  EPLB_ASSIGN_OR_RETURN(const int64_t num_bytes, FindNumber(rank0, "placement_bytes"));
  EPLB_ASSIGN_OR_RETURN(const std::string digest, FindField(rank0, "digest"));
  EPLB_ASSIGN_OR_RETURN(const std::string received,
                        BroadcastBytes(bytes, static_cast<size_t>(num_bytes), rank, all_gather));
  EPLB_ASSIGN_OR_RETURN(Placement placement, PlacementFromBytes(topology, received));
  RunningPlacement running = Running(version, std::move(placement));
  if (running.digest.Hex() != digest) {
    return DataLoss("start: rank 0's placement has digest ", running.digest.Hex(), ", expected ",
                    digest);
  }
  return running;
}

}  // namespace

absl::StatusOr<RunningPlacement> ChooseFirstPlacement(const ClientOptions& options,
                                                      const Topology& topology) {
  if (!options.initial_placement.empty()) {
    EPLB_ASSIGN_OR_RETURN(RunningPlacement first, Named(options.initial_placement, topology));
    return Numbered(std::move(first), options);
  }
  if (options.endpoint.empty()) return Running(0, Placement::Static(topology));
  absl::StatusOr<StoredPlacement> stored = Ask(options);
  EPLB_RETURN_IF_ERROR(CheckRequired(options, stored.status()));
  if (stored.ok() && stored->body.placement.topology() == topology) {
    return Running(stored->body.version, std::move(stored->body.placement));
  }
  if (stored.ok()) {
    const int64_t version = FreshVersion(options, *stored);
    LogLine(absl::StrCat("eplbd at ", stored->endpoint,
                         " has a placement of another shape for job ", options.job,
                         "; starting from the static one as version ", version));
    return Running(version, Placement::Static(topology));
  }
  if (!absl::IsNotFound(stored.status())) {
    LogLine(absl::StrCat("no stored placement from eplbd at ", options.endpoint, ": ",
                         stored.status().message(), "; starting from the static one"));
  }
  return Running(0, Placement::Static(topology));
}

absl::StatusOr<JobStart> StartJob(const ClientOptions& options, const Topology& topology,
                                  bool disabled, const absl::Status& own_error,
                                  const AllGather& all_gather) {
  StartRound round{.what = "start", .mine = FieldsOf(options, disabled), .error = own_error};
  std::string bytes;
  if (options.rank == 0 && own_error.ok()) {
    absl::StatusOr<RunningPlacement> first = disabled ? Running(0, Placement::Static(topology))
                                                      : ChooseFirstPlacement(options, topology);
    round.error = first.status();
    if (first.ok()) {
      bytes = PlacementBytes(*first->placement);
      round.extra = ExtraOf(*first, bytes.size());
    }
  }
  EPLB_ASSIGN_OR_RETURN(const std::vector<StartFields> extras,
                        RunStartRound(round, options.rank, options.world_size, all_gather));
  const StartFields& rank0 = extras.front();
  JobStart start;
  EPLB_ASSIGN_OR_RETURN(start.secret, FindField(rank0, "secret"));
  EPLB_ASSIGN_OR_RETURN(const std::string drawn, FindField(rank0, "drawn_run_id"));
  start.run_id = RunOf(LaunchIdOf(options), drawn);
  EPLB_ASSIGN_OR_RETURN(start.running, Receive(rank0, bytes, options.rank, topology, all_gather));
  return start;
}

}  // namespace eplb
