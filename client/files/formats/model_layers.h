// Files with a row for every layer of the model, as SGLang's: the rows of dense layers come first,
// and EPLB's MoE layer 0 is row `first_layer`.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_FORMATS_MODEL_LAYERS_H_
#define EPLB_CLIENT_FILES_FORMATS_MODEL_LAYERS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "client/files/load_window.h"
#include "placement/placement.h"

namespace eplb {

inline constexpr int32_t kMaxFirstLayer = 1 << 20;

// Puts `first_layer` rows in front that hold the experts in order, 0..S-1 mod num_experts: what
// SGLang gives to a dense layer.
IndexMatrix WithDenseRows(const IndexMatrix& slots, int32_t num_experts, int32_t first_layer);

// Takes the rows of dense layers away. Without `first_layer` nothing is taken, and the note, unless
// empty, names the rows that look like those of dense layers: experts in order in a map, no tokens
// in any window of a load. A file whose rows all look so gets no note: nothing tells them apart.
// With it, the note names rows taken away that look like MoE layers.
// returns: the note. errors: InvalidArgument when no row would be left.
absl::StatusOr<std::string> TakeDenseRows(const std::optional<int32_t>& first_layer,
                                          IndexMatrix& slots);
absl::StatusOr<std::string> TakeDenseRows(const std::optional<int32_t>& first_layer,
                                          std::vector<LoadWindow>& windows);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_FORMATS_MODEL_LAYERS_H_
