#include "client/registered_tensors.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/staging.h"

namespace eplb {
namespace {

absl::Status Refuse(const ExpertTensorView& view, const char* why) {
  return InvalidInput("tensor \"", view.name, "\": ", why);
}

bool HasRows(const ExpertTensorView& view) {
  return view.base != nullptr || view.num_rows != 0 || view.row_bytes != 0 || view.row_stride != 0;
}

constexpr char kLayers[] = "layers";
constexpr char kWeightBytes[] = "weight_bytes";
constexpr char kMemory[] = "memory";
constexpr char kStateBytes[] = "state_bytes";
constexpr char kStagingBytes[] = "staging_bytes";
constexpr char kStagingLayers[] = "staging_layers";
constexpr char kNone[] = "none";
constexpr char kAny[] = "any";

// Adds the lines of a description as fields "what 0", "what 1" and so on.
void AddLines(const char* what, const std::string& text, StartFields& fields) {
  int32_t line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    fields.emplace_back(absl::StrCat(what, " ", line_number++), std::string(line));
  }
}

absl::Status Mismatch(const char* field, const std::string& how) {
  return FailedPrecondition("tensors: ", field, " ", how);
}

// Returns the number in a field, or `otherwise` for kAny.
absl::StatusOr<int64_t> NumberIn(const StartFields& said, const char* name, int64_t otherwise) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, FindField(said, name));
  if (text == kAny) return otherwise;
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) return Mismatch(name, absl::StrCat("is \"", text, "\""));
  return value;
}

absl::Status RaiseTo(const StartFields& said, const char* name, int64_t& most) {
  EPLB_ASSIGN_OR_RETURN(const int64_t value, NumberIn(said, name, most));
  most = std::max(most, value);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> LayersSaid(const StartFields& said, int32_t num_layers) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, FindField(said, kLayers));
  std::vector<int32_t> layers;
  if (text == kNone) return layers;
  for (const absl::string_view number : absl::StrSplit(text, ", ")) {
    int32_t layer = 0;
    if (!absl::SimpleAtoi(number, &layer) || layer < 0 || layer >= num_layers) {
      return Mismatch(kLayers, absl::StrCat("is \"", text, "\""));
    }
    layers.push_back(layer);
  }
  return layers;
}

std::string RanksOf(const RankGrid& grid, int32_t pipeline_stage) {
  const int32_t block = grid.ranks_per_pipeline_stage();
  const int32_t first = pipeline_stage * block;
  return absl::StrCat("pipeline stage ", pipeline_stage,
                      block == 1 ? absl::StrCat(" (rank ", first, ")")
                                 : absl::StrCat(" (ranks ", first, "..", first + block - 1, ")"));
}

// Each layer is one pipeline stage's.
absl::StatusOr<std::vector<int32_t>> OwnersOf(std::span<const StartFields> said,
                                              const RankGrid& grid, int32_t num_layers) {
  constexpr int32_t kNobody = -1;
  std::vector<int32_t> owners(static_cast<size_t>(num_layers), kNobody);
  for (int32_t pipeline_stage = 0; pipeline_stage < grid.pipeline_parallel_size();
       ++pipeline_stage) {
    const int32_t first = pipeline_stage * grid.ranks_per_pipeline_stage();
    EPLB_ASSIGN_OR_RETURN(const std::vector<int32_t> layers,
                          LayersSaid(said[static_cast<size_t>(first)], num_layers));
    for (const int32_t layer : layers) {
      int32_t& owner = owners[static_cast<size_t>(layer)];
      if (owner != kNobody) {
        return FailedPrecondition("tensors: layer ", layer, " is registered by ",
                                  RanksOf(grid, owner), " and by ", RanksOf(grid, pipeline_stage),
                                  ", expected one of them");
      }
      owner = pipeline_stage;
    }
  }
  const auto missing = std::ranges::find(owners, kNobody);
  if (missing == owners.end()) return owners;
  return FailedPrecondition("tensors: layer ", missing - owners.begin(),
                            " is registered by none of the ", grid.pipeline_parallel_size(),
                            " pipeline stages");
}

// Returns the value that all ranks with tensors must share. kAny: value of a rank without tensors.
absl::StatusOr<std::string> EqualOnAll(std::span<const StartFields> said, const char* name) {
  std::string expected;
  size_t first = 0;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    EPLB_ASSIGN_OR_RETURN(const std::string value, FindField(said[rank], name));
    if (value == kAny || value == expected) continue;
    if (!expected.empty()) {
      return Mismatch(name, absl::StrCat("differs: rank ", first, " has ", expected, ", rank ",
                                         rank, " has ", value));
    }
    expected = value;
    first = rank;
  }
  return expected;
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
  EPLB_ASSIGN_OR_RETURN(needs.bytes,
                        CheckTensors(options.topology, options.gpu, tensors.moved, options.layers));
  EPLB_RETURN_IF_ERROR(CheckDerived(options.topology, tensors.moved, tensors.derived));
  EPLB_ASSIGN_OR_RETURN(needs.staging_bytes, StagingBytes(options, tensors.moved));
  needs.staging_layers = StagingLayers(options, tensors.moved);
  const bool has_tensors = !tensors.moved.empty();
  EPLB_ASSIGN_OR_RETURN(needs.memory, has_tensors ? FindMemory(tensors.moved) : MemoryInUse());
  std::vector<ExpertTensor> weights;
  std::vector<ExpertTensor> state;
  for (const ExpertTensor& tensor : tensors.moved) {
    (tensor.role == TensorRole::kWeight ? weights : state).push_back(tensor);
  }
  const std::string layers = has_tensors ? absl::StrJoin(LayersOf(tensors.moved), ", ") : kNone;
  needs.compared.emplace_back(kLayers, layers);
  AddLines("tensor", absl::StrCat(DescribeTensors(weights), DescribeDerived(tensors.derived)),
           needs.compared);
  needs.of_ep_group.emplace_back(kLayers, layers);
  needs.of_ep_group.emplace_back(kWeightBytes,
                                 has_tensors ? absl::StrCat(needs.bytes.weight) : kAny);
  const bool on_device = needs.memory.device.has_value();
  needs.of_ep_group.emplace_back(kMemory, !on_device ? "host" : has_tensors ? "GPU" : kAny);
  AddLines("state", DescribeTensors(state), needs.of_ep_group);
  needs.of_ep_group.emplace_back(kStateBytes, absl::StrCat(needs.bytes.state));
  needs.of_ep_group.emplace_back(kStagingBytes, absl::StrCat(needs.staging_bytes));
  needs.of_ep_group.emplace_back(kStagingLayers,
                                 has_tensors ? absl::StrCat(needs.staging_layers) : kAny);
  return needs;
}

absl::StatusOr<JobNeeds> JoinEpGroups(const TensorNeeds& mine,
                                      std::span<const StartFields> of_ep_group,
                                      const RankGrid& grid, int32_t num_layers) {
  JobNeeds job{.bytes = mine.bytes,
               .staging_layers = mine.staging_layers,
               .staging_bytes = mine.staging_bytes,
               .memory = mine.memory};
  EPLB_ASSIGN_OR_RETURN(job.pipeline_stage_of_layer, OwnersOf(of_ep_group, grid, num_layers));
  // After the tensors by name: a sum that differs says less.
  EPLB_RETURN_IF_ERROR(EqualOnAll(of_ep_group, kWeightBytes).status());
  EPLB_ASSIGN_OR_RETURN(const std::string memory, EqualOnAll(of_ep_group, kMemory));
  if (memory == "host") job.memory.device.reset();
  for (int32_t ep_group = 0; ep_group < grid.num_ep_groups(); ++ep_group) {
    EPLB_RETURN_IF_ERROR(
        CompareFields("tensors", grid.RanksOf(ep_group), of_ep_group, " inside an EP group"));
  }
  for (const StartFields& fields : of_ep_group) {
    EPLB_RETURN_IF_ERROR(RaiseTo(fields, kWeightBytes, job.bytes.weight));
    EPLB_RETURN_IF_ERROR(RaiseTo(fields, kStateBytes, job.bytes.state));
    EPLB_RETURN_IF_ERROR(RaiseTo(fields, kStagingBytes, job.staging_bytes));
    EPLB_ASSIGN_OR_RETURN(const int64_t layers,
                          NumberIn(fields, kStagingLayers, job.staging_layers));
    job.staging_layers = std::min(job.staging_layers, static_cast<int32_t>(layers));
  }
  if (mine.staging_bytes == 0) job.staging_bytes = kStagingAlignment;  // nothing ever comes here
  return job;
}

}  // namespace eplb
