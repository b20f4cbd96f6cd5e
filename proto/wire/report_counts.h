// The counts of a load report and of its parts, whichever form they have.
#pragma once

#include <cstdint>

#include "placement/load.h"
#include "proto/wire/messages.h"

namespace eplb::wire {

int32_t NumLayers(const LoadReport& report);
int32_t NumExperts(const LoadReport& report);
int32_t NumLayers(const LoadPart& part);
int32_t NumExperts(const LoadPart& part);
size_t CountBytes(const LoadReport& report);  // memory in bytes, with the parts

// The least of all counts; 0 when there is none. cost: O(1) for packed counts, which are >= 0.
int64_t LeastCount(const LoadReport& report);
int64_t LeastCount(const LoadPart& part);

// True if a count of the layer is above 0. REQUIRES: `layer` is in 0..NumLayers - 1, no count is
// below 0. cost: O(experts before the first with tokens).
bool HasTokens(const LoadReport& report, int32_t layer);

// [L, E], unpacked. cost: O(L * E).
LoadMatrix CountsOf(const LoadReport& report);
LoadMatrix CountsOf(const LoadPart& part);

// Adds the counts to `sum`. returns: false when a cell went above 2^63-1; `sum` is of no use then.
// REQUIRES: `sum` has the report's shape and no cell of either is below 0. cost: O(L * E): packed
// cells are read where they lie, 15,616 of them in about 5 us.
bool AddCounts(const LoadReport& report, LoadMatrix* sum);
bool AddCounts(const LoadPart& part, LoadMatrix* sum);

}  // namespace eplb::wire
