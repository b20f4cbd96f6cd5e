// The counts of a load report and of its parts, whichever form they have.
#pragma once

#include <cstdint>

#include "placement/load.h"
#include "proto/wire/messages.h"

namespace eplb::wire {

// Counted: LoadReport or LoadPart.
template <class Counted>
int32_t NumLayers(const Counted& counted) {
  return counted.packed.cells.empty() ? static_cast<int32_t>(counted.counts.rows())
                                      : counted.packed.num_layers;
}
template <class Counted>
int32_t NumExperts(const Counted& counted) {
  return counted.packed.cells.empty() ? static_cast<int32_t>(counted.counts.cols())
                                      : counted.packed.num_experts;
}
size_t CountBytes(const LoadReport& report);  // memory in bytes, with the parts

// Returns the least of all counts; 0 if there is none. cost: O(1) for packed counts, which are
// >= 0.
template <class Counted>
int64_t LeastCount(const Counted& counted) {
  return counted.counts.size() == 0 ? 0 : counted.counts.minCoeff();
}

// True if a count of the layer is above 0. REQUIRES: `layer` is in 0..NumLayers - 1, no count is
// below 0. cost: O(experts before the first with tokens).
bool HasTokens(const LoadReport& report, int32_t layer);

// Adds the counts to `sum`. returns: false when a cell went above 2^63-1; `sum` is of no use then.
// REQUIRES: `sum` has the report's shape and no cell of either is below 0. cost: O(L * E): packed
// cells are read where they lie, 15,616 of them in about 5 us.
bool AddCounts(const LoadReport& report, LoadMatrix* sum);
bool AddCounts(const LoadPart& part, LoadMatrix* sum);

// Returns the counts unpacked [L, E]. cost: O(L * E).
template <class Counted>
LoadMatrix CountsOf(const Counted& counted) {
  if (counted.packed.cells.empty()) return counted.counts;
  LoadMatrix counts = LoadMatrix::Zero(NumLayers(counted), NumExperts(counted));
  (void)AddCounts(counted, &counts);  // a u32 fits
  return counts;
}

}  // namespace eplb::wire
