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

// Fills a matrix from packed numbers, row by row. errors: InvalidArgument naming the field.
template <class Matrix>
absl::Status Unpack(const char* field, const std::string& bytes, Matrix* out) {
  const size_t expected = static_cast<size_t>(out->size()) * sizeof(typename Matrix::Scalar);
  if (bytes.size() != expected) {
    return InvalidInput("question: ", field, " has ", bytes.size(), " bytes, the shape expects ",
                        expected);
  }
  std::memcpy(out->data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

// Before memory is allocated for it.
absl::Status CheckSize(const TopologyOptions& shape) {
  const int64_t slots = int64_t{shape.num_layers} * shape.num_slots;
  if (shape.num_layers <= wire::kMaxLayers && slots <= wire::kMaxSlotsOfAllLayers) {
    return absl::OkStatus();
  }
  return InvalidInput("question: shape: ", shape.num_layers, " layers of ", shape.num_slots,
                      " slots, the daemon takes at most ", wire::kMaxLayers, " layers and ",
                      wire::kMaxSlotsOfAllLayers, " slots in all of them");
}

absl::StatusOr<core::PlanQuestion> FromProto(const v1::PlanRequest& request) {
  EPLB_ASSIGN_OR_RETURN(const TopologyOptions shape, wire::ShapeFromProto(request.shape()));
  const absl::StatusOr<Topology> topology = Topology::Make(shape);
  if (!topology.ok()) return InvalidInput("question: shape: ", topology.status().message());
  EPLB_RETURN_IF_ERROR(CheckSize(shape));
  LoadMatrix load(shape.num_layers, shape.num_experts);
  EPLB_RETURN_IF_ERROR(Unpack("load", request.load(), &load));
  if (load.minCoeff() < 0) return InvalidInput("question: load: a count is above 2^63-1");
  IndexMatrix slots(shape.num_layers, shape.num_slots);
  EPLB_RETURN_IF_ERROR(
      Unpack("physical_to_logical_map", request.physical_to_logical_map(), &slots));
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
