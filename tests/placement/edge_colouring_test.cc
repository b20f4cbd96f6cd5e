#include "placement/edge_colouring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int32_t MaxDegree(const std::vector<BipartiteEdge>& edges) {
  std::vector<int32_t> left(64);
  std::vector<int32_t> right(64);
  int32_t most = 0;
  for (const BipartiteEdge& edge : edges) {
    most = std::max(
        {most, ++left[static_cast<size_t>(edge.left)], ++right[static_cast<size_t>(edge.right)]});
  }
  return most;
}

std::string Check(const std::vector<BipartiteEdge>& edges, const EdgeColouring& colouring) {
  if (colouring.colours.size() != edges.size()) return "not every edge has a colour";
  if (colouring.num_colours != MaxDegree(edges)) {
    return absl::StrCat(colouring.num_colours, " colours, max degree ", MaxDegree(edges));
  }
  std::set<std::pair<int32_t, int32_t>> left;
  std::set<std::pair<int32_t, int32_t>> right;
  for (size_t i = 0; i < edges.size(); ++i) {
    const int32_t colour = colouring.colours[i];
    if (colour < 0 || colour >= colouring.num_colours) return absl::StrCat("colour ", colour);
    if (!left.emplace(edges[i].left, colour).second) return absl::StrCat("clash left at ", i);
    if (!right.emplace(edges[i].right, colour).second) return absl::StrCat("clash right at ", i);
  }
  return "";
}

TEST(EdgeColouringTest, RandomMultigraphsNeedMaxDegreeColours) {
  constexpr uint64_t kSeed = 80;
  Random random(kSeed);
  for (int i = 0; i < 3000; ++i) {
    const int32_t left = Pick(random, 1, 12);
    const int32_t right = Pick(random, 1, 12);
    std::vector<BipartiteEdge> edges(static_cast<size_t>(Pick(random, 0, 60)));
    for (BipartiteEdge& edge : edges) {
      edge = {Pick(random, 0, left - 1), Pick(random, 0, right - 1)};
    }
    const auto colouring = ColourEdges(edges, left, right);
    ASSERT_TRUE(colouring.ok()) << colouring.status();
    ASSERT_EQ(Check(edges, *colouring), "") << "seed " << kSeed << " case " << i;
  }
}

TEST(EdgeColouringTest, TakenColourIsFlippedAlongThePath) {
  // Left 1 wants colour 0, which right 0 has already given to the first edge.
  const std::vector<BipartiteEdge> edges{{0, 0}, {1, 0}};
  EXPECT_THAT(ColourEdges(edges, 2, 1)->colours, ElementsAre(1, 0));
}

TEST(EdgeColouringTest, RefusesAVertexOutOfRange) {
  const std::vector<BipartiteEdge> edges{{0, 0}, {2, 1}};
  EXPECT_THAT(ColourEdges(edges, 2, 2).status().message(), HasSubstr("edge 1 joins 2 and 1"));
}

TEST(EdgeColouringTest, RefusesATableThatWouldNotFit) {
  const std::vector<BipartiteEdge> edges(1 << 10, BipartiteEdge{0, 0});
  const absl::Status status = ColourEdges(edges, 1 << 20, 1 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("2097152 vertices x 1024 colours"));
}

}  // namespace
}  // namespace eplb
