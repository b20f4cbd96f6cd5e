#include "client/session/endpoint_choice.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

using Clock = EndpointChoice::Clock;
using std::chrono::seconds;

const Clock::time_point kStart{};

TEST(EndpointChoiceTest, OneThatNeverAnsweredGivesWayAfterItsGrace) {
  EndpointChoice at_once({"a:1", "b:1"}, seconds(0));
  EXPECT_TRUE(at_once.OnFailure(kStart));
  EXPECT_EQ(at_once.current(), "b:1");
  EndpointChoice patient({"a:1", "b:1"}, seconds(1));
  EXPECT_FALSE(patient.OnFailure(kStart));
  EXPECT_TRUE(patient.OnFailure(kStart + seconds(1)));
  EXPECT_EQ(patient.current(), "b:1");
}

TEST(EndpointChoiceTest, OneThatAnsweredIsStayedWithForFiveSeconds) {
  EndpointChoice choice({"a:1", "b:1", "c:1"}, seconds(0));
  choice.OnAnswer();
  EXPECT_FALSE(choice.OnFailure(kStart));
  EXPECT_FALSE(choice.OnFailure(kStart + seconds(4)));
  choice.OnAnswer();  // it was restarted
  EXPECT_FALSE(choice.OnFailure(kStart + seconds(9)));
  EXPECT_FALSE(choice.OnFailure(kStart + seconds(13)));
  EXPECT_EQ(choice.current(), "a:1");
  EXPECT_TRUE(choice.OnFailure(kStart + seconds(14)));
  EXPECT_EQ(choice.current(), "b:1");
}

TEST(EndpointChoiceTest, TheListGoesRoundAndRankThatIsSentElsewhereGoesThere) {
  EndpointChoice choice({"a:1", "b:1", "c:1"}, seconds(0));
  for (const char* next : {"b:1", "c:1", "a:1"}) {
    EXPECT_TRUE(choice.OnFailure(kStart));
    EXPECT_EQ(choice.current(), next);
  }
  choice.GoTo("c:1");
  EXPECT_EQ(choice.position(), 2U);
  choice.GoTo("unknown:1");
  EXPECT_EQ(choice.position(), 2U);
}

TEST(EndpointChoiceTest, ASingleOneIsKept) {
  EndpointChoice choice({"a:1"}, seconds(0));
  EXPECT_FALSE(choice.OnFailure(kStart));
  EXPECT_FALSE(choice.OnFailure(kStart + seconds(100)));
  EXPECT_EQ(choice.current(), "a:1");
}

}  // namespace
}  // namespace eplb
