#include "cuda/kernels/route_body.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/cuda/route_case.h"

namespace eplb::cuda {
namespace {

// The kernel's loop for one block, cut into phases where the kernel has barriers: clear, route and
// count with the threads in random order, merge.
template <class ExpertId>
void RunRouteBlock(const RouteArgs& args, const CountGrid& grid, int32_t block,
                   std::mt19937_64& random) {
  std::vector<uint32_t> histogram(static_cast<size_t>(args.choices.num_experts) + 1);
  std::vector<int64_t> order(static_cast<size_t>(grid.threads));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  const int64_t num_quads = NumQuads(args.choices);
  const int64_t stride = int64_t{grid.blocks} * grid.threads;
  for (const int64_t thread : order) {
    for (int64_t quad = int64_t{block} * grid.threads + thread; quad < num_quads; quad += stride) {
      const BinQuad quad_bins = RouteQuad<ExpertId>(args, quad);
      for (const int32_t bin : quad_bins.bins) {
        if (bin != kNoBin) ++histogram[static_cast<size_t>(bin)];
      }
    }
  }
  for (int32_t bin = 0; bin <= args.choices.num_experts; ++bin) {
    std::atomic_ref(*CountCell(args.choices, bin))
        .fetch_add(histogram[static_cast<size_t>(bin)], std::memory_order_relaxed);
  }
}

// A case with its own slots and counters, all within red zones.
template <class ExpertId>
class RouteRun {
 public:
  static constexpr size_t kRedZone = 64;
  static constexpr ExpertId kUntouched = 77;

  // shift: by how many ids the arrays are misaligned.
  RouteRun(const testing::RouteCase<ExpertId>& c, size_t shift)
      : ids_(shift),
        slots_(c.slots.size() + 2 * kRedZone + shift, kUntouched),
        counts_(c.choices.counts.size() + 2 * kRedZone),
        begin_(kRedZone + shift) {
    ids_.insert(ids_.end(), c.choices.ids.begin(), c.choices.ids.end());
    args_ = testing::ArgsOf(c);
    args_.choices.expert_ids = ids_.data() + shift;
    args_.slots = slots_.data() + begin_;
    args_.choices.counts = counts_.data() + kRedZone;
    args_.choices.out_of_range = &out_of_range_;
  }

  const RouteArgs& args() const { return args_; }

  void ExpectRouted(const testing::RouteCase<ExpertId>& c) const {
    std::vector<ExpertId> slots(slots_.size(), kUntouched);
    std::copy(c.slots.begin(), c.slots.end(), slots.begin() + static_cast<int64_t>(begin_));
    EXPECT_EQ(slots_, slots);
    std::vector<int64_t> counts(counts_.size());
    std::copy(c.choices.counts.begin(), c.choices.counts.end(), counts.begin() + kRedZone);
    EXPECT_EQ(counts_, counts);
    EXPECT_EQ(out_of_range_, c.choices.out_of_range);
  }

 private:
  std::vector<ExpertId> ids_;
  std::vector<ExpertId> slots_;
  std::vector<int64_t> counts_;
  size_t begin_;
  int64_t out_of_range_ = 0;
  RouteArgs args_;
};

template <class ExpertId>
class RouteBodyTest : public ::testing::Test {};
using RouteBodyIds = ::testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(RouteBodyTest, RouteBodyIds);

TYPED_TEST(RouteBodyTest, AnyGridInAnyOrderGivesThePlainReference) {
  constexpr uint64_t kSeed = 400;
  std::mt19937_64 random(kSeed);
  for (const testing::CountShape& shape : testing::CountShapes()) {
    for (const CountGrid& grid : {CountGrid{1, 1}, CountGrid{5, 33}, CountGrid{2, 512}}) {
      for (const size_t shift : {0, 1}) {
        SCOPED_TRACE(absl::StrCat("seed ", kSeed, " tokens ", shape.num_tokens, " top_k ",
                                  shape.top_k, " masked ", shape.masked, " grid ", grid.blocks,
                                  " x ", grid.threads, " shift ", shift));
        const auto c = testing::MakeRouteCase<TypeParam>(shape, kSeed);
        RouteRun<TypeParam> run(c, shift);
        for (int32_t block = grid.blocks; block-- > 0;) {
          RunRouteBlock<TypeParam>(run.args(), grid, block, random);
        }
        run.ExpectRouted(c);
        if (this->HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(RouteBodyTest, BlocksMayRunAtOnce) {
  constexpr uint64_t kSeed = 401;
  constexpr CountGrid kGrid{.blocks = 6, .threads = 64};
  const auto c = testing::MakeRouteCase<TypeParam>({20011, 8, 256, true}, kSeed);
  RouteRun<TypeParam> run(c, 0);
  std::vector<std::thread> blocks;
  blocks.reserve(kGrid.blocks);
  for (int32_t block = 0; block < kGrid.blocks; ++block) {
    blocks.emplace_back([&run, kGrid, block] {
      std::mt19937_64 random(kSeed + static_cast<uint64_t>(block));
      RunRouteBlock<TypeParam>(run.args(), kGrid, block, random);
    });
  }
  for (std::thread& block : blocks) block.join();
  run.ExpectRouted(c);
}

TEST(CandidateOfDrawTest, TheFirstThresholdAboveTheDraw) {
  const std::vector<uint32_t> thresholds{10, 20, 20, 4'000'000'000, UINT32_MAX};
  const auto of = [&](uint32_t draw) { return CandidateOfDraw(thresholds.data(), 5, draw); };
  EXPECT_EQ(of(0), 0);
  EXPECT_EQ(of(9), 0);
  EXPECT_EQ(of(10), 1);
  EXPECT_EQ(of(19), 1);
  EXPECT_EQ(of(20), 3) << "candidate 2 has no share";
  EXPECT_EQ(of(3'999'999'999), 3);
  EXPECT_EQ(of(4'000'000'000), 4);
  EXPECT_EQ(of(UINT32_MAX), 4);
  EXPECT_EQ(CandidateOfDraw(thresholds.data(), 1, UINT32_MAX), 0);
}

TEST(RouteDrawTest, ValueIsFixed) {
  // Draws that ranks on other builds, and the GPU, must make.
  EXPECT_EQ(RouteDraw(0, 0), 2802244911U);
  EXPECT_EQ(RouteDraw(123'456'789'012, 255), 886944990U);
}

}  // namespace
}  // namespace eplb::cuda
