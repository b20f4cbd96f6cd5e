#include "client/session/connection.h"

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

TEST(EndpointChoiceTest, OneThatRefusesWithoutHavingWelcomedGivesWayAtOnce) {
  EndpointChoice choice({"a:1", "b:1"}, seconds(0));
  choice.OnAnswer();
  choice.OnRefusal(kStart);  // it knows this run
  EXPECT_EQ(choice.current(), "a:1");
  EXPECT_FALSE(choice.OnFailure(kStart));
  EXPECT_TRUE(choice.OnFailure(kStart + seconds(6)));
  choice.OnRefusal(kStart + seconds(7));
  EXPECT_EQ(choice.current(), "a:1");
}

TEST(EndpointChoiceTest, OneThatLeadsWithoutAPlaceIsAvoidedLongerEachTime) {
  EndpointChoice choice({"a:1", "b:1"}, seconds(0));
  choice.OnAnswer();
  auto now = kStart;
  for (const int minutes : {1, 2, 4, 8, 16, 16}) {
    ASSERT_TRUE(choice.MayGoTo("b:1", now));
    choice.GoTo("b:1");
    ASSERT_TRUE(choice.OnFailure(now));
    EXPECT_EQ(choice.current(), "a:1");
    EXPECT_TRUE(choice.MayGoTo("a:1", now));
    EXPECT_FALSE(choice.MayGoTo("b:1", now + std::chrono::minutes(minutes) - seconds(1)));
    now += std::chrono::minutes(minutes);
  }
  choice.GoTo("b:1");
  choice.OnAnswer();
  EXPECT_FALSE(choice.OnFailure(now));
  EXPECT_TRUE(choice.MayGoTo("b:1", now));
}

TEST(EndpointChoiceTest, AnElectedOneIsStayedWithForOneSecond) {
  EndpointChoice choice({"a:1", "b:1"}, seconds(0));
  choice.OnAnswer(/*elected=*/true);
  EXPECT_FALSE(choice.OnFailure(kStart));
  EXPECT_TRUE(choice.OnFailure(kStart + seconds(1)));
  EXPECT_EQ(choice.current(), "b:1");
}

TEST(EndpointChoiceTest, AStandbyGivesWayToTheOneThatItNamesElseToTheNext) {
  EndpointChoice choice({"a:1", "b:1", "c:1"}, seconds(0));
  choice.OnAnswer(/*elected=*/true);
  choice.OnStandby("c:1");
  EXPECT_EQ(choice.current(), "c:1");
  choice.OnStandby("");
  EXPECT_EQ(choice.current(), "a:1");
  choice.OnStandby("elsewhere:1");
  EXPECT_EQ(choice.current(), "b:1");
  choice.OnStandby("b:1");  // it is no longer so
  EXPECT_EQ(choice.current(), "c:1");
}

TEST(EndpointChoiceTest, ASingleOneIsKept) {
  EndpointChoice choice({"a:1"}, seconds(0));
  EXPECT_FALSE(choice.OnFailure(kStart));
  EXPECT_FALSE(choice.OnFailure(kStart + seconds(100)));
  EXPECT_EQ(choice.current(), "a:1");
}

TEST(BackoffTest, RangeDoublesUpToTheLongest) {
  const BackoffOptions options;
  EXPECT_EQ(BackoffDelay(options, 0, 0.5), absl::Milliseconds(100));
  EXPECT_EQ(BackoffDelay(options, 1, 0.5), absl::Milliseconds(200));
  EXPECT_EQ(BackoffDelay(options, 7, 0.5), absl::Milliseconds(12'800));
  EXPECT_EQ(BackoffDelay(options, 8, 0.5), absl::Seconds(15));
  EXPECT_EQ(BackoffDelay(options, 1 << 30, 0.5), absl::Seconds(15));
}

TEST(BackoffTest, ASmallJobWaitsForSecondsALargeOneForHalfAMinute) {
  EXPECT_EQ(BackoffFor(8).longest, absl::Seconds(2));
  EXPECT_EQ(BackoffFor(1000).longest, absl::Seconds(10));
  EXPECT_EQ(BackoffFor(16384).longest, absl::Seconds(30));
  EXPECT_EQ(BackoffFor(8).refused, absl::Seconds(30));
}

TEST(BackoffTest, JitterIsFull) {
  EXPECT_EQ(BackoffDelay({}, 5, 0), absl::ZeroDuration());
  EXPECT_LT(BackoffDelay({}, 20, 0.999), absl::Seconds(30));
}

}  // namespace

}  // namespace eplb
