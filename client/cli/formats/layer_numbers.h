// The model's numbers of the layers in a file, the choice among these layers, and the rows of dense
// layers. MoE layers need not be consecutive: a model may have them at 1, 3, 5 and so on.
// threads: safe, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/formats/load_window.h"
#include "placement/placement.h"

namespace eplb {

inline constexpr int32_t kMaxLayerNumber = 1 << 20;

using LayerNumbers = std::vector<int32_t>;  // rising; empty: not known

// The layers that a command line names; at most one of the two members is set.
struct LayerChoice {
  std::optional<int32_t> first = {};  // --first-layer: this layer and those after it
  LayerNumbers list = {};             // --layers

  bool given() const { return first.has_value() || !list.empty(); }
  // "--first-layer 3" or "--layers 1,3,5", as the command line takes it; empty unless given.
  std::string Flag() const;
};

// Reads numbers and ranges separated by commas: "1,3,5", "3-60" or "1:47:2", a range with a step.
// errors: InvalidArgument unless the numbers rise within 0..kMaxLayerNumber.
absl::StatusOr<LayerNumbers> ParseLayerNumbers(std::string_view text);

// The shortest of the forms above.
std::string LayerNumbersText(const LayerNumbers& numbers);

// The choice of exactly these layers from a file that has no numbers: --first-layer if possible.
LayerChoice ChoiceOf(const LayerNumbers& numbers);

// first, first + 1, .. of `count` layers.
LayerNumbers Consecutive(int32_t first, int64_t count);

// Indices of the rows that `choice` names among rows of these numbers; all rows unless given.
// errors: InvalidArgument: a layer that no row has, no row is left.
absl::StatusOr<std::vector<Eigen::Index>> ChooseRows(const LayerNumbers& numbers,
                                                     const LayerChoice& choice);
absl::Status KeepRows(const std::vector<Eigen::Index>& rows, std::vector<LoadWindow>& windows);

// Rows of dense layers: SGLang has a row for every layer of the model, and row 7 is layer 7.

// Writes row i of `slots` as row numbers[i]. The rows between them hold the experts in order,
// 0..S-1 mod num_experts, as SGLang lays out a dense layer. REQUIRES: a number for each row.
IndexMatrix WithDenseRows(const IndexMatrix& slots, int32_t num_experts,
                          const LayerNumbers& numbers);

// True for each row that looks like that of a dense layer: experts in order in a map, no tokens in
// any window of a load.
std::vector<bool> DenseRows(const IndexMatrix& slots);
std::vector<bool> DenseRows(const std::vector<LoadWindow>& windows);

// A sentence about a file with a row for every layer, empty if there is nothing to report. Without
// a choice it names the rows that look dense and the flag that leaves them out; if all rows look
// so, nothing tells them apart. With --first-layer it names rows left out that do not look dense.
// how: what makes a row look dense.
std::string NoteOnDenseRows(const std::vector<bool>& dense, const LayerChoice& choice,
                            const char* how);

}  // namespace eplb
