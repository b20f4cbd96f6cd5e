// Colours the edges of a bipartite multigraph: how the transfers of a migration become rounds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

// One edge; parallel edges are allowed.
struct BipartiteEdge {
  int32_t left = 0;   // 0..num_left-1, for transfers the sender
  int32_t right = 0;  // 0..num_right-1, for transfers the receiver
};

struct EdgeColouring {
  std::vector<int32_t> colours;  // one per edge, 0..num_colours-1
  int32_t num_colours = 0;       // = the largest degree of any vertex, the least possible
};

// Gives every edge a colour so that no two edges at a vertex share one. An edge takes the lowest
// colour free at its left end; if that is taken at its right end, the path that alternates between
// this colour and one free at the right end is flipped first. In a bipartite graph that path never
// comes back to the left end, so max degree colours suffice.
// errors: InvalidArgument for a vertex out of range; ResourceExhausted when vertices * max degree
//   exceeds 2^28 table cells.
// cost: O(edges * (vertices + max degree)) time, O(vertices * max degree) memory.
// threads: safe, no state. Deterministic: equal input gives equal colours on every machine.
// source: D. Koenig, 1916, "Ueber Graphen und ihre Anwendung auf Determinantentheorie".
absl::StatusOr<EdgeColouring> ColourEdges(std::span<const BipartiteEdge> edges, int32_t num_left,
                                          int32_t num_right);

}  // namespace eplb
