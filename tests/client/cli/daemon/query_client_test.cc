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

TEST_F(QueryClientTest, WhatMayComeFromAnyServerNamesTheEndpoint) {
  for (const grpc::StatusCode code :
       {grpc::StatusCode::UNIMPLEMENTED, grpc::StatusCode::UNKNOWN, grpc::StatusCode::UNAVAILABLE,
        grpc::StatusCode::INTERNAL, grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    daemon_.failure = {code, "Received http2 header with status: 404"};
    const Output output = RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain);
    EXPECT_EQ(output.exit_code, kError) << code;
    EXPECT_EQ(output.message, daemon_.endpoint() + ": Received http2 header with status: 404")
        << code;
  }
  // The daemon's own words about the question.
  daemon_.failure = {grpc::StatusCode::NOT_FOUND, "no job train"};
  EXPECT_EQ(RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain).message, "no job train");
}

TEST_F(QueryClientTest, AFailureWithoutWordsNamesItsCode) {
  daemon_.failure = {grpc::StatusCode::UNIMPLEMENTED, ""};
  EXPECT_EQ(RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain).message,
            daemon_.endpoint() + " answers UNIMPLEMENTED and no message");
  daemon_.failure = {grpc::StatusCode::PERMISSION_DENIED, ""};
  const Output denied = RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain);
  EXPECT_EQ(denied.exit_code, kDenied);
  EXPECT_EQ(denied.message, daemon_.endpoint() + " answers PERMISSION_DENIED and no message");
}

}  // namespace
}  // namespace eplb::cli
