#include "placement/edge_colouring.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr int64_t kMaxColourCells = int64_t{1} << 28;
constexpr int32_t kFree = -1;

// Which edge has which colour at which vertex. Left vertices come first, then right ones.
class ColourTable {
 public:
  ColourTable(std::span<const BipartiteEdge> edges, int32_t num_left, int32_t num_vertices,
              int32_t num_colours)
      : edges_(edges),
        num_left_(num_left),
        num_colours_(num_colours),
        edge_at_(static_cast<size_t>(num_vertices) * static_cast<size_t>(num_colours), kFree),
        taken_below_(static_cast<size_t>(num_vertices), 0),
        colours_(edges.size(), kFree) {}

  void Colour(int32_t edge) {
    const int32_t left = edges_[static_cast<size_t>(edge)].left;
    const int32_t right = num_left_ + edges_[static_cast<size_t>(edge)].right;
    const int32_t colour = LowestFreeColour(left);
    if (EdgeAt(right, colour) != kFree) FlipPath(right, colour, LowestFreeColour(right));
    Assign(edge, colour);
  }

  std::vector<int32_t> TakeColours() && { return std::move(colours_); }

 private:
  int32_t& EdgeAt(int32_t vertex, int32_t colour) {
    return edge_at_[static_cast<size_t>(vertex) * static_cast<size_t>(num_colours_) +
                    static_cast<size_t>(colour)];
  }

  // A vertex with an edge yet to colour always has one: it has at most num_colours edges.
  int32_t LowestFreeColour(int32_t vertex) {
    int32_t& lowest = taken_below_[static_cast<size_t>(vertex)];
    while (EdgeAt(vertex, lowest) != kFree) ++lowest;
    return lowest;
  }

  void Free(int32_t vertex, int32_t colour) {
    EdgeAt(vertex, colour) = kFree;
    int32_t& lowest = taken_below_[static_cast<size_t>(vertex)];
    lowest = std::min(lowest, colour);
  }

  void Assign(int32_t edge, int32_t colour) {
    colours_[static_cast<size_t>(edge)] = colour;
    EdgeAt(edges_[static_cast<size_t>(edge)].left, colour) = edge;
    EdgeAt(num_left_ + edges_[static_cast<size_t>(edge)].right, colour) = edge;
  }

  // Swaps `from` and `to` along the path that leaves `vertex` by colour `from`; `to` is free at
  // `vertex`. The path is simple, so it has at most one edge per vertex.
  void FlipPath(int32_t vertex, int32_t from, int32_t to) {
    path_.clear();
    for (int32_t colour = from, at = vertex; EdgeAt(at, colour) != kFree;
         colour = from + to - colour) {
      const int32_t edge = EdgeAt(at, colour);
      path_.push_back(edge);
      const int32_t left = edges_[static_cast<size_t>(edge)].left;
      at = at == left ? num_left_ + edges_[static_cast<size_t>(edge)].right : left;
    }
    for (const int32_t edge : path_) {
      const int32_t colour = colours_[static_cast<size_t>(edge)];
      Free(edges_[static_cast<size_t>(edge)].left, colour);
      Free(num_left_ + edges_[static_cast<size_t>(edge)].right, colour);
    }
    for (const int32_t edge : path_) Assign(edge, from + to - colours_[static_cast<size_t>(edge)]);
  }

  std::span<const BipartiteEdge> edges_;
  int32_t num_left_;
  int32_t num_colours_;
  std::vector<int32_t> edge_at_;      // [vertices, colours], kFree where no edge has the colour
  std::vector<int32_t> taken_below_;  // [vertices], no colour below is free
  std::vector<int32_t> colours_;      // [edges]
  std::vector<int32_t> path_;         // kept between calls, so that it allocates once
};

absl::StatusOr<int32_t> MaxDegree(std::span<const BipartiteEdge> edges, int32_t num_left,
                                  int32_t num_right) {
  std::vector<int32_t> left_degree(static_cast<size_t>(num_left));
  std::vector<int32_t> right_degree(static_cast<size_t>(num_right));
  int32_t max_degree = 0;
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto [left, right] = edges[i];
    if (left < 0 || left >= num_left || right < 0 || right >= num_right) {
      return InvalidInput("edge ", i, " joins ", left, " and ", right, ", expected 0..",
                          num_left - 1, " and 0..", num_right - 1);
    }
    max_degree = std::max({max_degree, ++left_degree[static_cast<size_t>(left)],
                           ++right_degree[static_cast<size_t>(right)]});
  }
  return max_degree;
}

}  // namespace

absl::StatusOr<EdgeColouring> ColourEdges(std::span<const BipartiteEdge> edges, int32_t num_left,
                                          int32_t num_right) {
  EPLB_ASSIGN_OR_RETURN(const int32_t max_degree, MaxDegree(edges, num_left, num_right));
  if (max_degree == 0) return EdgeColouring{};
  const int64_t num_vertices = int64_t{num_left} + num_right;
  if (num_vertices > kMaxColourCells / max_degree) {
    return ResourceExhausted("colouring ", edges.size(), " edges needs a table of ", num_vertices,
                             " vertices x ", max_degree, " colours, at most ", kMaxColourCells,
                             " cells are allowed");
  }
  ColourTable table(edges, num_left, static_cast<int32_t>(num_vertices), max_degree);
  for (size_t edge = 0; edge < edges.size(); ++edge) table.Colour(static_cast<int32_t>(edge));
  return EdgeColouring{std::move(table).TakeColours(), max_degree};
}

}  // namespace eplb
