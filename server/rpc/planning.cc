// Checks each question's bytes and hands it to the core, which answers it.
#include "server/rpc/planning.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/names.h"
#include "server/rpc/answer.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel little-endian");

// Reads packed numbers [rows, columns]. Compares sizes before it allocates memory. errors:
// InvalidArgument naming the field.
template <class Matrix>
absl::StatusOr<Matrix> Unpack(const char* field, const std::string& bytes, int32_t rows,
                              int32_t columns) {
  const int64_t expected =
      int64_t{rows} * columns * static_cast<int64_t>(sizeof(typename Matrix::Scalar));
  if (std::ssize(bytes) != expected) {
    return InvalidInput("question: ", field, " has ", bytes.size(), " bytes, the shape expects ",
                        expected);
  }
  Matrix matrix(rows, columns);
  std::memcpy(matrix.data(), bytes.data(), bytes.size());
  return matrix;
}

absl::StatusOr<core::PlanQuestion> FromProto(const v1::PlanRequest& request) {
  EPLB_ASSIGN_OR_RETURN(const TopologyOptions shape, wire::ShapeFromProto(request.shape()));
  const absl::StatusOr<Topology> topology = Topology::Make(shape);
  if (!topology.ok()) return InvalidInput("question: shape: ", topology.status().message());
  EPLB_ASSIGN_OR_RETURN(LoadMatrix load, Unpack<LoadMatrix>("load", request.load(),
                                                            shape.num_layers, shape.num_experts));
  EPLB_ASSIGN_OR_RETURN(
      const IndexMatrix slots,
      Unpack<IndexMatrix>("physical_to_logical_map", request.physical_to_logical_map(),
                          shape.num_layers, shape.num_slots));
  absl::StatusOr<Placement> current = Placement::FromSlots(*topology, slots);
  if (!current.ok()) {
    return InvalidInput("question: physical_to_logical_map: ", current.status().message());
  }
  return core::PlanQuestion{.job = request.job(),
                            .run_id = request.run_id(),
                            .replaces_run_id = request.replaces_run_id(),
                            .engine = Clipped(request.engine(), wire::kMaxNameLength),
                            .number = Clamped(request.question()),
                            .expert_bytes = Clamped(request.expert_bytes()),
                            .shape = shape,
                            .current = *std::move(current),
                            .load = std::move(load)};
}

void ToProto(const core::ChangeOutcome& answer, v1::PlanResponse* response) {
  response->set_version(static_cast<uint64_t>(answer.version));
  response->set_reason(answer.outcome);
  if (answer.placement == nullptr) return;
  const IndexMatrix& slots = answer.placement->physical_to_logical_map();
  std::string& bytes = *response->mutable_physical_to_logical_map();
  bytes.resize(static_cast<size_t>(slots.size()) * sizeof(int32_t));
  std::memcpy(bytes.data(), slots.data(), bytes.size());
}

class PlanningService : public v1::Planning::CallbackService {
 public:
  PlanningService(Runner* runner, Gate* gate) : runner_(runner), gate_(gate) {}

  CallReactor* Plan(CallContext* context, const v1::PlanRequest* request,
                    v1::PlanResponse* response) override {
    if (absl::Status status = gate_->AdmitJob(*context, Verb::kPlan, request->job());
        !status.ok()) {
      return Done(context, status);
    }
    absl::StatusOr<core::PlanQuestion> question = FromProto(*request);
    if (!question.ok()) {
      gate_->Refuse(Refusal::kMalformed, HostOf(context->peer()),
                    std::string(question.status().message()));
      return Done(context, question.status());
    }
    auto* reactor = new OutcomeReactor(
        [response](const core::ChangeOutcome& answer) { ToProto(answer, response); });
    reactor->Start([this, &question](auto done) {
      return runner_->AskPlan(*std::move(question), std::move(done));
    });
    return reactor;
  }

  CallReactor* Settle(CallContext* context, const v1::SettleRequest* request,
                      v1::SettleResponse*) override {
    if (absl::Status status = gate_->AdmitJob(*context, Verb::kPlan, request->job());
        !status.ok()) {
      return Done(context, status);
    }
    auto* reactor = new OutcomeReactor([](const core::ChangeOutcome&) {});
    reactor->Start([this, request](auto done) {
      return runner_->SettlePlan({.job = request->job(),
                                  .run_id = request->run_id(),
                                  .version = Clamped(request->version()),
                                  .taken = request->taken(),
                                  .reason = Clipped(request->reason())},
                                 std::move(done));
    });
    return reactor;
  }

 private:
  Runner* const runner_;
  Gate* const gate_;
};

}  // namespace

std::unique_ptr<v1::Planning::CallbackService> MakePlanningService(Runner* runner, Gate* gate) {
  return std::make_unique<PlanningService>(runner, gate);
}

}  // namespace eplb
