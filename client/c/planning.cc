// A serving engine's questions to a daemon: eplb_ask_plan and eplb_settle_plan.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/time/time.h"

#include "base/errors.h"
#include "client/c/client_handle.h"
#include "client/c/eplb_plan.h"
#include "client/c/plan.h"
#include "client/c/structs.h"
#include "client/options.h"
#include "client/session/planning_calls.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb::c {
namespace {

std::string TextOrNone(const char* text) { return text == nullptr ? "" : text; }

PlanningDaemons DaemonsOf(const eplb_plan_question& question, const char* endpoint) {
  return {.endpoint = TextOrNone(endpoint),
          .tls = TlsFilesOf({.ca = TextOrNone(question.tls_ca),
                             .cert = TextOrNone(question.tls_cert),
                             .key = TextOrNone(question.tls_key),
                             .server_name = TextOrNone(question.tls_server_name)}),
          .timeout = absl::Seconds(question.timeout_s)};
}

absl::StatusOr<PlanQuestion> ReadQuestion(const eplb_plan_question& given) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(ShapeOf(given)));
  EPLB_RETURN_IF_ERROR(CheckNotNull("counts", given.counts));
  EPLB_RETURN_IF_ERROR(CheckNotNull("current", given.current));
  EPLB_ASSIGN_OR_RETURN(Load load, Load::FromCounts(Eigen::Map<const LoadMatrix>(
                                       given.counts, given.num_layers, given.num_experts)));
  // Numbers that 32 bits cannot hold stay out of range.
  const IndexMatrix slots =
      Eigen::Map<const LoadMatrix>(given.current, given.num_layers, given.num_slots)
          .max(-2)
          .min(given.num_experts)
          .cast<int32_t>();
  EPLB_ASSIGN_OR_RETURN(Placement current, Placement::FromSlots(topology, slots));
  return PlanQuestion{.job = TextOrNone(given.job),
                      .run_id = TextOrNone(given.run_id),
                      .replaces_run_id = TextOrNone(given.replaces_run_id),
                      .engine = TextOrNone(given.engine),
                      .number = given.number,
                      .expert_bytes = given.expert_bytes,
                      .load = std::move(load),
                      .current = std::move(current)};
}

// Copies as much as fits, and a zero.
template <size_t kSize>
void CopyText(const std::string& text, char (&out)[kSize]) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(out, text.data(), length);
  out[length] = '\0';
}

absl::Status Ask(const eplb_plan_question* question, int64_t* physical_to_logical_map,
                 eplb_plan_answer* answer) {
  EPLB_ASSIGN_OR_RETURN(const eplb_plan_question read, ReadStruct("question", question));
  EPLB_RETURN_IF_ERROR(CheckNotNull("physical_to_logical_map", physical_to_logical_map));
  EPLB_RETURN_IF_ERROR(CheckFillable("answer", answer));
  EPLB_ASSIGN_OR_RETURN(const PlanQuestion asked, ReadQuestion(read));
  EPLB_ASSIGN_OR_RETURN(const PlanAnswer given, AskPlan(DaemonsOf(read, read.endpoint), asked));
  eplb_plan_answer result = {};
  result.version = given.version;
  result.changes = given.placement.has_value() ? 1 : 0;
  CopyText(given.reason, result.reason);
  CopyText(given.endpoint, result.endpoint);
  FillStruct(result, answer);
  if (!given.placement.has_value()) return absl::OkStatus();
  const IndexMatrix& slots = given.placement->physical_to_logical_map();
  std::copy_n(slots.data(), slots.size(), physical_to_logical_map);
  return absl::OkStatus();
}

absl::Status Settle(const eplb_plan_question* question, const eplb_plan_answer* answer,
                    int32_t taken, const char* reason) {
  EPLB_ASSIGN_OR_RETURN(const eplb_plan_question read, ReadStruct("question", question));
  EPLB_ASSIGN_OR_RETURN(const eplb_plan_answer given, ReadStruct("answer", answer));
  if (taken != 0 && taken != 1) return InvalidInput("taken: ", taken, ", expected 0 or 1");
  return SettlePlan(DaemonsOf(read, given.endpoint), {.job = TextOrNone(read.job),
                                                      .run_id = TextOrNone(read.run_id),
                                                      .version = given.version,
                                                      .taken = taken == 1,
                                                      .reason = TextOrNone(reason)});
}

}  // namespace
}  // namespace eplb::c

extern "C" {

int32_t eplb_ask_plan(const eplb_plan_question* question, int64_t* physical_to_logical_map,
                      eplb_plan_answer* answer) noexcept {
  return eplb::c::CatchAll([&] { return eplb::c::Ask(question, physical_to_logical_map, answer); });
}

int32_t eplb_settle_plan(const eplb_plan_question* question, const eplb_plan_answer* answer,
                         int32_t taken, const char* reason) noexcept {
  return eplb::c::CatchAll([&] { return eplb::c::Settle(question, answer, taken, reason); });
}

}  // extern "C"
