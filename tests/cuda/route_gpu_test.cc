#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"

#include "cuda/route.h"
#include "cuda/runtime.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"
#include "tests/cuda/route_case.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

constexpr size_t kRedZone = 64;

// Arrays that one id misaligns.
enum class Shift : uint8_t { kNone, kIds, kSlots };

// A case's arrays on the device; slots and counters within red zones.
template <class ExpertId>
class RouteOnDevice {
 public:
  static constexpr ExpertId kUntouched = 77;

  RouteOnDevice(const testing::RouteCase<ExpertId>& c, Shift shift)
      : begin_(kRedZone + (shift == Shift::kSlots ? 1 : 0)),
        ids_(Shifted(c.choices.ids, shift == Shift::kIds ? 1 : 0)),
        is_padding_(c.choices.is_padding),
        candidates_(c.table.candidates),
        first_candidate_(c.table.first_candidate),
        thresholds_(c.table.thresholds),
        slots_(std::vector<ExpertId>(c.slots.size() + begin_ + kRedZone, kUntouched)),
        counts_(std::vector<int64_t>(c.choices.counts.size() + 2 * kRedZone)),
        out_of_range_(std::vector<int64_t>(1)),
        args_(testing::ArgsOf(c)) {
    args_.choices.expert_ids = ids_.data() + (shift == Shift::kIds ? 1 : 0);
    if (c.choices.shape.masked) args_.choices.is_padding = is_padding_.data();
    args_.choices.counts = counts_.data() + kRedZone;
    args_.choices.out_of_range = out_of_range_.data();
    args_.table.candidates = candidates_.data();
    args_.table.first_candidate = first_candidate_.data();
    args_.table.thresholds = thresholds_.data();
    args_.slots = slots_.data() + begin_;
  }

  const RouteArgs& args() const { return args_; }

  // After `times` launches that counted.
  void ExpectRouted(const testing::RouteCase<ExpertId>& c, int64_t times) const {
    std::vector<ExpertId> slots(c.slots.size() + begin_ + kRedZone, kUntouched);
    std::copy(c.slots.begin(), c.slots.end(), slots.begin() + static_cast<int64_t>(begin_));
    EXPECT_EQ(slots_.Read(), slots);
    std::vector<int64_t> counts(c.choices.counts.size() + 2 * kRedZone);
    for (size_t i = 0; i < c.choices.counts.size(); ++i) {
      counts[kRedZone + i] = times * c.choices.counts[i];
    }
    EXPECT_EQ(counts_.Read(), counts);
    EXPECT_EQ(out_of_range_.Read().front(), times * c.choices.out_of_range);
  }

 private:
  static std::vector<ExpertId> Shifted(const std::vector<ExpertId>& ids, size_t shift) {
    std::vector<ExpertId> shifted(shift);
    shifted.insert(shifted.end(), ids.begin(), ids.end());
    return shifted;
  }

  size_t begin_;
  OnDevice<ExpertId> ids_;
  OnDevice<uint8_t> is_padding_;
  OnDevice<int32_t> candidates_;
  OnDevice<int32_t> first_candidate_;
  OnDevice<uint32_t> thresholds_;
  OnDevice<ExpertId> slots_;
  OnDevice<int64_t> counts_;
  OnDevice<int64_t> out_of_range_;
  RouteArgs args_;
};

template <class ExpertId>
class LaunchRouteTest : public testing::StreamTest<> {
 protected:
  // With counters, then without: the slots are the same and nothing is counted. Candidates of equal
  // shares are routed without thresholds, which is another kernel.
  void CheckShape(const testing::CountShape& shape, uint64_t seed, Shift shift,
                  testing::Shares shares) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " tokens ", shape.num_tokens, " top_k ", shape.top_k,
                              " experts ", shape.num_experts, " masked ", shape.masked, " shift ",
                              static_cast<int>(shift), " equal shares ",
                              shares == testing::Shares::kEqual));
    const auto c = testing::MakeRouteCase<ExpertId>(shape, seed, shares);
    const RouteOnDevice<ExpertId> on_device(c, shift);
    RouteArgs args = on_device.args();
    if (shares == testing::Shares::kEqual) args.table.thresholds = nullptr;
    const absl::Status counted = LaunchRoute(args, stream_.get());
    ASSERT_TRUE(counted.ok()) << counted;
    Synchronize();
    on_device.ExpectRouted(c, 1);
    args.choices.counts = nullptr;
    args.choices.out_of_range = nullptr;
    const absl::Status routed = LaunchRoute(args, stream_.get());
    ASSERT_TRUE(routed.ok()) << routed;
    Synchronize();
    on_device.ExpectRouted(c, 1);
  }
};
using RouteGpuIds = ::testing::Types<int32_t, int64_t>;
TYPED_TEST_SUITE(LaunchRouteTest, RouteGpuIds);

TYPED_TEST(LaunchRouteTest, EqualsThePlainReference) {
  ASSERT_TRUE(LoadRouteKernels().ok());
  constexpr uint64_t kSeed = 420;
  std::vector<testing::CountShape> shapes = testing::CountShapes();
  shapes.push_back({testing::ManyTokens(), 8, 256, true});  // more than one stride of the grid
  for (const testing::CountShape& shape : shapes) {
    for (const Shift shift : {Shift::kNone, Shift::kIds, Shift::kSlots}) {
      this->CheckShape(shape, kSeed, shift, testing::Shares::kEqual);
      this->CheckShape(shape, kSeed, shift, testing::Shares::kRandom);
      if (this->HasFailure()) return;
    }
  }
}

TYPED_TEST(LaunchRouteTest, EqualsThePlainReferenceForRandomLayers) {
  for (uint64_t seed = 0; seed < testing::kNumSmallShapes; ++seed) {
    std::mt19937_64 random(seed);
    const testing::CountShape shape{.num_tokens = static_cast<int64_t>(1 + random() % 1500),
                                    .top_k = static_cast<int32_t>(1 + random() % 9),
                                    .num_experts = static_cast<int32_t>(1 + random() % 600),
                                    .masked = random() % 2 == 0};
    this->CheckShape(shape, seed, static_cast<Shift>(random() % 3), testing::Shares::kEqual);
    if (this->HasFailure()) return;
  }
}

TYPED_TEST(LaunchRouteTest, TablesTooLargeForSharedMemoryRouteAndCountTheSame) {
  for (const int32_t num_experts : {5'000, 13'000}) {
    ASSERT_EQ(PackedTableBytes(num_experts, num_experts), 0);
    ASSERT_EQ(HistogramBytes(num_experts) == 0, num_experts == 13'000);
    this->CheckShape({2003, 4, num_experts, false}, 421, Shift::kNone, testing::Shares::kEqual);
    if (this->HasFailure()) return;
  }
}

TYPED_TEST(LaunchRouteTest, ACapturedGraphRoutesAndCountsAtEachLaunch) {
  constexpr uint64_t kSeed = 422;
  const auto c = testing::MakeRouteCase<TypeParam>({4096, 8, 256, false}, kSeed);
  const RouteOnDevice<TypeParam> on_device(c, Shift::kNone);
  const testing::GraphExec graph = testing::Capture(this->stream_.get(), [&](cudaStream_t stream) {
    return LaunchRoute(on_device.args(), stream);
  });
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cudaGraphLaunch(graph.get(), this->stream_.get()), cudaSuccess);
  }
  this->Synchronize();
  on_device.ExpectRouted(c, 3);
}

TYPED_TEST(LaunchRouteTest, RefusesWhatTheHostRefuses) {
  EXPECT_EQ(
      LaunchRoute({.choices = {.num_tokens = -1, .top_k = 1, .num_experts = 1}}, nullptr).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      LaunchRoute({.choices = {.num_tokens = 0, .top_k = 1, .num_experts = 1}}, nullptr).ok());
}

}  // namespace
}  // namespace eplb::cuda
