#include "client/registered_tensors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "placement/status_macros.h"

namespace eplb {
namespace {

absl::Status Refuse(const ExpertTensorView& view, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", view.name, "\": ", why));
}

bool HasRows(const ExpertTensorView& view) {
  return view.base != nullptr || view.num_rows != 0 || view.row_bytes != 0 || view.row_stride != 0;
}

constexpr char kStateBytes[] = "state_bytes";
constexpr char kStagingBytes[] = "staging_bytes";

// Adds the lines of a description as fields "what 0", "what 1" and so on.
void AddLines(const char* what, const std::string& text, StartFields& fields) {
  int32_t line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    fields.emplace_back(absl::StrCat(what, " ", line_number++), std::string(line));
  }
}

std::string Shown(const StartFields& fields, const std::string& name) {
  const absl::StatusOr<std::string> value = FindField(fields, name);
  return value.ok() ? *value : "no such field";
}

// Compares rank `rank` with the first one of its lane.
absl::Status CompareInLane(std::span<const StartFields> of_lane, size_t rank, size_t first) {
  const StartFields& here = of_lane[rank];
  const StartFields& there = of_lane[first];
  for (size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
    if (i < here.size() && i < there.size() && here[i] == there[i]) continue;
    const std::string& name = i < there.size() ? there[i].first : here[i].first;
    return absl::FailedPreconditionError(
        absl::StrCat("tensors: ", name, " differs inside a lane: rank ", first, " has ",
                     Shown(there, name), ", rank ", rank, " has ", Shown(here, name)));
  }
  return absl::OkStatus();
}

absl::Status RaiseTo(const StartFields& said, const char* name, int64_t& most) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, FindField(said, name));
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::FailedPreconditionError(absl::StrCat("tensors: ", name, " is \"", text, "\""));
  }
  most = std::max(most, value);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RegisteredTensors> SortByRole(std::span<const ExpertTensorView> views) {
  RegisteredTensors tensors;
  for (const ExpertTensorView& view : views) {
    // Ranks compare their tensors as lines of text.
    if (view.name.empty() || absl::StrContains(view.name, '\n')) {
      return Refuse(view, "expected a name of one line");
    }
    if (view.role == Role::kDerived) {
      if (HasRows(view)) return Refuse(view, "is derived and has rows, but it is not moved");
      tensors.derived.push_back(
          {.name = view.name, .layer = LayerId{view.layer}, .rebuild = view.rebuild});
      continue;
    }
    if (view.rebuild) return Refuse(view, "has a rebuild, but it is moved and not derived");
    tensors.moved.push_back(
        {.name = view.name,
         .layer = LayerId{view.layer},
         .role = view.role == Role::kState ? TensorRole::kState : TensorRole::kWeight,
         .base = view.base,
         .num_rows = view.num_rows,
         .row_bytes = view.row_bytes,
         .row_stride = view.row_stride});
  }
  return tensors;
}

absl::StatusOr<TensorNeeds> NeedsOf(const RegisteredTensors& tensors,
                                    const ExecutorOptions& options) {
  TensorNeeds needs;
  EPLB_ASSIGN_OR_RETURN(needs.bytes, CheckTensors(options.topology, options.gpu, tensors.moved));
  EPLB_RETURN_IF_ERROR(CheckDerived(options.topology, tensors.moved, tensors.derived));
  EPLB_ASSIGN_OR_RETURN(needs.staging_bytes, StagingBytes(options, tensors.moved));
  EPLB_ASSIGN_OR_RETURN(needs.memory, FindMemory(tensors.moved));
  std::vector<ExpertTensor> weights;
  std::vector<ExpertTensor> state;
  for (const ExpertTensor& tensor : tensors.moved) {
    (tensor.role == TensorRole::kWeight ? weights : state).push_back(tensor);
  }
  // By name first: a sum that differs says less.
  AddLines("tensor", absl::StrCat(DescribeTensors(weights), DescribeDerived(tensors.derived)),
           needs.compared);
  needs.compared.emplace_back("weight_bytes", absl::StrCat(needs.bytes.weight));
  needs.compared.emplace_back("memory", needs.memory.device.has_value() ? "GPU" : "host");
  AddLines("state", DescribeTensors(state), needs.of_lane);
  needs.of_lane.emplace_back(kStateBytes, absl::StrCat(needs.bytes.state));
  needs.of_lane.emplace_back(kStagingBytes, absl::StrCat(needs.staging_bytes));
  return needs;
}

absl::StatusOr<JobNeeds> JoinLanes(const TensorNeeds& mine, std::span<const StartFields> of_lane,
                                   int32_t ranks_per_lane) {
  JobNeeds job{.bytes = mine.bytes, .staging_bytes = mine.staging_bytes, .memory = mine.memory};
  const auto size = static_cast<size_t>(ranks_per_lane);
  for (size_t rank = 0; rank < of_lane.size(); ++rank) {
    EPLB_RETURN_IF_ERROR(CompareInLane(of_lane, rank, rank / size * size));
    EPLB_RETURN_IF_ERROR(RaiseTo(of_lane[rank], kStateBytes, job.bytes.state));
    EPLB_RETURN_IF_ERROR(RaiseTo(of_lane[rank], kStagingBytes, job.staging_bytes));
  }
  return job;
}

}  // namespace eplb
