#include "client/cli/page_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/client/cli/page_of_job.h"
#include "tests/client/cli/small_run.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;

TEST(PageDocumentsTest, AtMostSoManyWindowsKeepTheirLoadsSpreadEvenlyWithTheLast) {
  for (const int64_t windows : {1, 2, 119, 120, 121, 500, 4096, 10000}) {
    const PageDocuments page("run", "demo", SmallTopology(), windows);
    std::vector<int64_t> kept;
    for (int64_t i = 0; i < windows; ++i) {
      if (page.KeepsLoads(i)) kept.push_back(i);
    }
    EXPECT_EQ(std::ssize(kept), std::min<int64_t>(windows, kMaxPageWindowsWithLoads)) << windows;
    EXPECT_EQ(kept.back(), windows - 1);
    EXPECT_EQ(kept.front(), std::max<int64_t>(windows - kMaxPageWindows, 0));
    EXPECT_EQ(page.KeepsWindow(0), windows <= kMaxPageWindows);
  }
  // 58 layers of 256 experts: fewer, for the file to stay small.
  const Topology large =
      *Topology::Make({.num_layers = 58, .num_experts = 256, .num_slots = 288, .num_gpus = 32});
  const PageDocuments page("run", "demo", large, 1000);
  int64_t kept = 0;
  for (int64_t i = 0; i < 1000; ++i) kept += page.KeepsLoads(i) ? 1 : 0;
  EXPECT_GT(kept, 10);
  EXPECT_LT(kept, 60);
}

TEST(PageDocumentsTest, AFlowLeadsFromTheGpuThatSendsToTheOneThatReceives) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
  IndexMatrix slots(1, 4);
  slots << 0, 1, 2, 2;
  const Placement before = *Placement::FromSlots(topology, slots);
  slots << 0, 1, 2, 1;
  const Placement after = *Placement::FromSlots(topology, slots);
  PageDocuments page("run", "demo", topology, 1);
  v1::Plan plan;
  plan.set_plan(7);
  plan.set_received_bytes(99);
  ASSERT_TRUE(page.AddTraffic(plan, before, after).ok());
  const Page done{page.Finish("now")};
  EXPECT_EQ(done.At("/traffic?plan=7")["gpus"], PageJson::parse("[[0,1,1]]"));
  EXPECT_EQ(done.At("/traffic?plan=7")["received_bytes"], 99);
}

TEST(PageDocumentsTest, WhatIsLeftOutIsSaid) {
  PageDocuments page("trace", "demo", SmallTopology(), kMaxPageWindows + 7);
  for (int64_t i = 0; i < 1500; ++i) page.AddPlan({{"plan", i}, {"num_chunks", i == 3 ? 1 : 0}});
  for (uint64_t i = 0; i < 1001; ++i) {
    v1::JobEvent event;
    event.set_sequence(i);
    page.AddEvent(event);
  }
  const Page done{page.Finish("now")};
  const PageJson plans = done.At("/plans")["plans"];
  EXPECT_EQ(plans.size(), kMaxPagePlans);
  EXPECT_EQ(plans.back()["plan"], 3);  // it moved something
  EXPECT_EQ(plans.front()["plan"], 1499);
  EXPECT_EQ(done.At("/events")["events"].back()["sequence"], 1);
  const std::string warnings = done.documents["paths"]["api/v1/jobs"]["warnings"].dump();
  EXPECT_THAT(warnings, HasSubstr("500 decisions of the oldest are left out"));
  EXPECT_THAT(warnings, HasSubstr("the oldest 1 event are left out"));
  EXPECT_THAT(warnings, HasSubstr("the oldest 7 windows are left out"));
}

}  // namespace
}  // namespace eplb::cli
