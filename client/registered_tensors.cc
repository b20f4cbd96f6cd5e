#include "client/registered_tensors.h"

#include <string>
#include <utility>

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

}  // namespace

absl::StatusOr<RegisteredTensors> SortByRole(std::span<const ExpertTensorView> views) {
  RegisteredTensors tensors;
  for (const ExpertTensorView& view : views) {
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
  needs.compared = {{"weight_bytes", absl::StrCat(needs.bytes.weight)},
                    {"state_bytes", absl::StrCat(needs.bytes.state)},
                    {"staging_bytes", absl::StrCat(needs.staging_bytes)}};
  int32_t line_number = 0;
  const std::string text =
      absl::StrCat(DescribeTensors(tensors.moved), DescribeDerived(tensors.derived));
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    needs.compared.emplace_back(absl::StrCat("tensor ", line_number++), std::string(line));
  }
  return needs;
}

}  // namespace eplb
