// The largest job that a Hello may tell of: everything else of it fits, too.
#include <gtest/gtest.h>

#include <limits>

#include "proto/wire/messages.h"
#include "tests/server/rpc/served_test.h"

namespace eplb {
namespace {

constexpr int32_t kExperts = wire::kMaxSlotsOfAllLayers / 2;
constexpr TopologyOptions kLargestShape = {
    .num_layers = 2, .num_experts = kExperts, .num_slots = kExperts, .num_gpus = 2};

wire::Hello LargestHello(int32_t rank, const Placement& running) {
  wire::Hello hello = HelloOf(rank, 100 + static_cast<uint64_t>(rank));
  hello.shape = kLargestShape;
  hello.running_version = 7;
  hello.running_digest = DigestOf(running);
  return hello;
}

// Not the static one, so that the daemon asks for it.
Placement Running() {
  const Topology topology = *Topology::Make(kLargestShape);
  IndexMatrix slots = Placement::Static(topology).physical_to_logical_map();
  std::swap(slots(1, 0), slots(1, kExperts - 1));
  return *Placement::FromSlots(topology, slots);
}

using LargestJobTest = ServedTest;

TEST_F(LargestJobTest, ItsPlacementAndItsReportsInAllFormsAreTaken) {
  frozen_to_ = 1000;  // only arrivals matter here
  Start();
  const Placement running = Running();
  const std::unique_ptr<RankStream> ranks[] = {Connect(), Connect()};
  for (int32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(ranks[rank]->Say(LargestHello(rank, running)));
    ASSERT_TRUE(ranks[rank]->Hear<wire::Welcome>().has_value());
  }
  // One of the two was asked first; an answer without a request is not looked at.
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->Say(
        wire::PlacementBody{.version = 7, .digest = DigestOf(running), .placement = running}));
  }
  wire::LoadReport wide = ReportOf(0);  // all counts need 8 bytes
  wide.version = 7;
  wide.parts_unknown = true;
  wide.counts = LoadMatrix::Constant(2, kExperts, int64_t{1} << 40);
  wire::LoadReport parted = ReportOf(kReportEvery);  // two times all counts in 4 bytes
  parted.version = 7;
  parted.counts = LoadMatrix::Constant(2, kExperts, std::numeric_limits<uint32_t>::max());
  parted.earlier = {{.last_step = kReportEvery + 3, .version = 6, .counts = parted.counts}};
  for (const auto& rank : ranks) ASSERT_TRUE(rank->Say(wide));
  for (const auto& rank : ranks) ASSERT_TRUE(rank->Say(parted));
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  absl::StatusOr<core::WindowView> window = runner_->NewestWindow("job");
  while ((!window.ok() || window->first_step != kReportEvery) && absl::Now() < give_up) {
    std::this_thread::yield();
    window = runner_->NewestWindow("job");
  }
  ASSERT_TRUE(window.ok()) << window.status();
  EXPECT_EQ(window->first_step, kReportEvery);
  EXPECT_EQ(window->load->num_experts(), kExperts);
  EXPECT_EQ(runner_->sessions().count(), 2);
}

}  // namespace
}  // namespace eplb
