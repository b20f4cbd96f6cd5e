#include "client/cli/daemon/get_events.h"

#include <gmock/gmock.h>

#include "tests/client/cli/daemon/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class GetEventsTest : public ::testing::Test {
 protected:
  GetEventsTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

TEST_F(GetEventsTest, EventsComeNewestFirstWithWhoChangedWhat) {
  v1::JobEvent change;
  change.set_sequence(9);
  change.set_name("policy_set");
  change.set_reason("too many small moves");
  change.set_actor("alice\x1b");
  change.set_before("min_gain 0.05");
  change.set_after("min_gain 0.1");
  v1::JobEvent older;
  older.set_sequence(8);
  older.set_name("committed");
  daemon_.events = {change, older};
  const Output output = RunGetEvents({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_THAT(output.out, StartsWith("9  1970-01-01T00:00:00.000Z  policy_set  v0  by alice?\n"));
  EXPECT_THAT(output.out, HasSubstr("8  1970-01-01T00:00:00.000Z  committed  v0\n"));
  EXPECT_THAT(output.out, HasSubstr("  min_gain 0.05 -> min_gain 0.1\n"));
  const Output newer =
      RunGetEvents({.query = daemon_.Options(Format::kJson), .job = "", .after = 8}, kPlain);
  EXPECT_THAT(newer.out, HasSubstr(R"("sequence":9)"));
  EXPECT_THAT(newer.out, Not(HasSubstr(R"("sequence":8)")));
}

}  // namespace
}  // namespace eplb::cli
