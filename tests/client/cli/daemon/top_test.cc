#include "client/cli/daemon/top.h"

#include <gmock/gmock.h>

#include "tests/client/cli/daemon/explained_job.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;

using TopTest = ExplainedJobTest;

TEST_F(TopTest, TopShowsOneScreen) {
  const Output output = RunTop({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_THAT(output.out, HasSubstr("GPU loads, all layers"));
  EXPECT_THAT(output.out, HasSubstr("static layout"));
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
}

}  // namespace
}  // namespace eplb::cli
