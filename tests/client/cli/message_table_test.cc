#include "client/cli/message_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <google/protobuf/text_format.h>

#include "client/cli/plan_text.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

v1::Plan PlanOf(const std::string& text) {
  v1::Plan plan;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &plan));
  return plan;
}

v1::Plan CommittedPlan() {
  return PlanOf(
      "plan: 8 unix_micros: 1795000000123000 policy: 'incremental' result: PLAN_RESULT_COMMITTED "
      "first_version: 10 last_version: 11 num_chunks: 2 chunks_committed: 2 switched_step: 431 "
      "decided_first_step: 200 decided_last_step: 399 balancedness_before: 0.7124 transfers: 1516 "
      "balancedness_predicted: 0.981 prediction_error: 0.03 received_bytes: 7400000 "
      "pause_seconds: 0.058");
}

// The second was kept: it has no versions, and nothing was measured of it.
std::vector<v1::Plan> TwoPlans() {
  return {CommittedPlan(), PlanOf("plan: 7 result: PLAN_RESULT_KEPT decided_first_step: 199 "
                                  "decided_last_step: 199")};
}

std::string Text(const std::vector<v1::Plan>& plans, int width) {
  const Terminal terminal{.width = width};
  return FormatTable(MessageTable(plans, terminal, PlanWords()), terminal);
}

TEST(MessageTableTest, ColumnsFollowTheirOptionsAndOneWithoutAValueIsLeftOut) {
  EXPECT_EQ(
      Text(TwoPlans(), 160),
      "plan  time (UTC)              steps  result     switched at  versions  measured       "
      "predicted  transfers  received    pause\n"
      "   8  2026-11-18 11:06:40  200..399  committed          431    10..11     0.712  0.981 "
      "+- 0.030      1,516    7.4 MB  58.0 ms\n"
      "   7  -                         199  kept                 -         -         -        "
      "       -          0         -        -\n");
}

TEST(MessageTableTest, ANarrowTerminalDropsColumnsInTheirOrder) {
  EXPECT_EQ(Text(TwoPlans(), 80),
            "plan  time (UTC)      steps  result     measured       predicted  received\n"
            "   8  11-18 11:06  200..399  committed     0.712  0.981 +- 0.030    7.4 MB\n"
            "   7  -                 199  kept              -               -         -\n");
}

TEST(MessageTableTest, WordsStandInPlaceOfAValueAndAnEmptyWordIsNone) {
  std::vector<v1::Plan> plans = TwoPlans();
  plans[0].set_chunks_committed(1);
  EXPECT_NE(Text(plans, 160).find("  committed 1/2  "), std::string::npos);
  const auto nothing = [](const google::protobuf::Message&) { return std::string(); };
  const Table table = MessageTable(plans, {}, {{"result", nothing}});
  EXPECT_EQ(std::ranges::count(table.heading, "result"), 0);
}

TEST(MessageTableTest, TextsOfPeersArePrintableAndCut) {
  std::vector<v1::RankStatus> ranks(1);
  ranks[0].mutable_transport()->set_name("host\x1b[2J" + std::string(40, 'x'));
  const Terminal terminal{.width = 160};
  const std::string text = FormatTable(MessageTable(ranks, terminal), terminal);
  EXPECT_NE(text.find("  host?[2Jxxxxxxxxxxxxxx..  "), std::string::npos) << text;
}

TEST(FigureListTest, HasEveryFigureThatIsSetTheColumnsOfTablesFirst) {
  EXPECT_EQ(FigureList(CommittedPlan(), PlanWords(), {"unix_micros"}),
            "plan 8, steps 200..399, result committed, switched at 431, versions 10..11, "
            "measured 0.712, predicted 0.981 +- 0.030, transfers 1,516, received 7.4 MB, "
            "pause 58.0 ms, policy incremental");
}

}  // namespace
}  // namespace eplb::cli
