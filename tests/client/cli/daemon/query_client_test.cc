#include "client/cli/daemon/query_client.h"

#include <gmock/gmock.h>

#include "client/cli/daemon/get_ranks.h"
#include "tests/client/cli/daemon/scripted_query.h"

namespace eplb::cli {
namespace {

class QueryClientTest : public ::testing::Test {
 protected:
  QueryClientTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

TEST_F(QueryClientTest, WithoutJobTheOnlyOneIsMeantAndOfSeveralOneIsAskedFor) {
  daemon_.status.add_jobs()->set_job("other");
  const Output several = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(several.exit_code, kUsage);
  EXPECT_EQ(several.message, "--job is needed: the daemon knows train, other");
  daemon_.status.clear_jobs();
  const Output none = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(none.exit_code, kNotFound);
  EXPECT_EQ(none.message, "the daemon knows no job yet");
  daemon_.status.set_jobs_hidden(true);
  const Output hidden = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(hidden.exit_code, kNotFound);
  EXPECT_EQ(hidden.message, kNoVisibleJob);
}

}  // namespace
}  // namespace eplb::cli
