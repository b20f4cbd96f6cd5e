// Asks the daemons of a list in their order, and checks the answer.
#include "client/session/planning_calls.h"

#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/endpoint_source.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/session/channel.h"
#include "proto/wire/convert.h"
#include "proto/wire/endpoint.h"
#include "proto/wire/names.h"

#include "eplb/v1/planning.grpc.pb.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

template <class Matrix>
std::string BytesOf(const Matrix& cells) {
  return {reinterpret_cast<const char*>(cells.data()),
          static_cast<size_t>(cells.size()) * sizeof(typename Matrix::Scalar)};
}

// errors: Internal for bytes that are no complete placement of this shape.
absl::StatusOr<Placement> PlacementFromBytes(const Topology& topology, const std::string& bytes) {
  IndexMatrix slots(topology.num_layers(), topology.num_slots());
  const size_t expected = static_cast<size_t>(slots.size()) * sizeof(int32_t);
  if (bytes.size() != expected) {
    return Internal("the answer's placement has ", bytes.size(), " bytes, expected ", expected);
  }
  std::memcpy(slots.data(), bytes.data(), expected);
  if ((slots < 0).any()) return Internal("the answer's placement has empty slots");
  absl::StatusOr<Placement> placement = Placement::FromSlots(topology, slots);
  if (!placement.ok()) return Internal("the answer's ", placement.status().message());
  return placement;
}

absl::Status CheckNames(const PlanningDaemons& daemons, const std::string& job,
                        const std::string& run_id) {
  EPLB_RETURN_IF_ERROR(wire::CheckPlainName("job", job));
  EPLB_RETURN_IF_ERROR(wire::CheckPrintableName("run_id", run_id));
  if (daemons.timeout > absl::ZeroDuration() && daemons.timeout <= absl::Hours(24)) {
    return absl::OkStatus();
  }
  return InvalidInput("timeout: ", absl::FormatDuration(daemons.timeout),
                      ", expected above 0, at most 24h");
}

// Calls `call(Planning stub, grpc::ClientContext*)` once: the next question follows anyway, and the
// engine waits.
template <class Call>
absl::Status CallPlanning(const std::string& endpoint, const wire::TlsFiles& tls,
                          absl::Duration timeout, const Call& call) {
  return CallDaemon(
      endpoint, tls, timeout,
      [&](const auto& channel, auto* context) {
        return call(*v1::Planning::NewStub(channel), context);
      },
      /*grace=*/absl::ZeroDuration());
}

absl::StatusOr<PlanAnswer> AskAt(const std::string& endpoint, const wire::TlsFiles& tls,
                                 absl::Duration timeout, const v1::PlanRequest& request,
                                 const Topology& topology) {
  v1::PlanResponse response;
  EPLB_RETURN_IF_ERROR(CallPlanning(endpoint, tls, timeout, [&](auto& planning, auto* context) {
    return planning.Plan(context, request, &response);
  }));
  if (response.version() > std::numeric_limits<int64_t>::max()) {
    return Internal("the answer's version is ", response.version());
  }
  PlanAnswer answer{.placement = std::nullopt,
                    .version = static_cast<int64_t>(response.version()),
                    .reason = Clipped(response.reason()),
                    .endpoint = endpoint};
  if (!response.physical_to_logical_map().empty()) {
    EPLB_ASSIGN_OR_RETURN(answer.placement,
                          PlacementFromBytes(topology, response.physical_to_logical_map()));
  }
  return answer;
}

// Returns `status` with the daemon in its message, after what the daemons before it answered.
absl::Status At(const std::string& endpoint, const absl::Status& status,
                const absl::Status& before) {
  return absl::Status(status.code(), absl::StrCat(before.message(), before.ok() ? "" : "; ",
                                                  "eplbd at ", endpoint, ": ", status.message()));
}

}  // namespace

absl::StatusOr<PlanAnswer> AskPlan(const PlanningDaemons& daemons, const PlanQuestion& question) {
  EPLB_RETURN_IF_ERROR(CheckNames(daemons, question.job, question.run_id));
  if (question.number < 1) return InvalidInput("number: ", question.number, ", expected from 1");
  if (question.expert_bytes < 0) {
    return InvalidInput("expert_bytes: ", question.expert_bytes, ", expected at least 0");
  }
  const absl::Time deadline = MonotonicNow() + daemons.timeout;
  EPLB_ASSIGN_OR_RETURN(const std::string found,
                        ReadEndpointSource(daemons.endpoint, {.deadline = daemons.timeout}));
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> endpoints, wire::SplitEndpoints(found));
  const Topology& topology = question.current.topology();
  v1::PlanRequest request;
  request.set_job(question.job);
  request.set_run_id(question.run_id);
  request.set_replaces_run_id(question.replaces_run_id);
  request.set_engine(question.engine);
  request.set_question(static_cast<uint64_t>(question.number));
  request.set_expert_bytes(static_cast<uint64_t>(question.expert_bytes));
  wire::ToProto(topology, request.mutable_shape());
  request.set_load(BytesOf(question.load.counts()));
  request.set_physical_to_logical_map(BytesOf(question.current.physical_to_logical_map()));
  absl::Status failure;
  for (const std::string& endpoint : endpoints) {
    const absl::Duration left = deadline - MonotonicNow();
    const bool is_last = &endpoint == &endpoints.back();
    absl::StatusOr<PlanAnswer> answer =
        AskAt(endpoint, daemons.tls, is_last ? left : left / 2, request, topology);
    if (answer.ok()) return answer;
    failure = At(endpoint,
                 absl::IsUnimplemented(answer.status())
                     ? absl::UnimplementedError("this daemon is too old to plan for engines")
                     : answer.status(),
                 failure);
    if (!absl::IsUnavailable(failure) && !absl::IsDeadlineExceeded(failure)) break;
  }
  return failure;
}

absl::Status SettlePlan(const PlanningDaemons& daemon, const PlanOutcome& outcome) {
  EPLB_RETURN_IF_ERROR(CheckNames(daemon, outcome.job, outcome.run_id));
  EPLB_RETURN_IF_ERROR(wire::CheckEndpoint(daemon.endpoint).status());
  v1::SettleRequest request;
  request.set_job(outcome.job);
  request.set_run_id(outcome.run_id);
  request.set_version(static_cast<uint64_t>(outcome.version));
  request.set_taken(outcome.taken);
  request.set_reason(Clipped(outcome.reason));
  v1::SettleResponse response;
  const absl::Status status = CallPlanning(
      daemon.endpoint, daemon.tls, daemon.timeout,
      [&](auto& planning, auto* context) { return planning.Settle(context, request, &response); });
  return status.ok() ? status : At(daemon.endpoint, status, absl::OkStatus());
}

}  // namespace eplb
