#include "proto/wire/message_texts.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/foreign_text.h"

#include "eplb/v1/query.pb.h"

namespace eplb::wire {
namespace {

TEST(MessageTextsTest, EveryTextOfEveryDepthIsMadeFitToParse) {
  v1::GetStatusResponse response;
  response.add_warnings("ok");
  response.add_warnings("half a character: \xc3");
  v1::JobStatus* job = response.add_jobs();
  job->set_job(std::string("a\x1b[2Jb"));
  job->set_digest("\xff\x1b");
  job->set_last_reason(std::string(5000, 'x'));
  job->add_ranks()->set_library_version("0.1.0\xe2\x82");
  job->mutable_ranks(0)->set_step_seconds(std::numeric_limits<double>::infinity());
  ClipTexts(&response);
  EXPECT_EQ(job->ranks(0).step_seconds(), 0) << "not finite";
  EXPECT_EQ(response.warnings(0), "ok");
  EXPECT_EQ(response.warnings(1), "half a character: ?");
  EXPECT_EQ(job->job(), "a?[2Jb");
  EXPECT_EQ(job->digest(), "\xff\x1b");  // bytes, no text
  EXPECT_EQ(job->last_reason().size(), kMaxLongText);
  EXPECT_TRUE(IsUtf8(job->ranks(0).library_version())) << job->ranks(0).library_version();
  v1::GetStatusResponse parsed;
  EXPECT_TRUE(parsed.ParseFromString(response.SerializeAsString()));
}

TEST(MessageTextsTest, LongTextsAreCutAtTheLengthThatIsAskedFor) {
  v1::JobEvent event;
  event.set_reason("0123456789");
  ClipTexts(&event, 6);
  EXPECT_EQ(event.reason(), "012...");
}

}  // namespace
}  // namespace eplb::wire
