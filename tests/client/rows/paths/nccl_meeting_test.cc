#include "client/rows/paths/nccl_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "tests/client/rows/paths/nccl_world.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kRanks = 3;

// Until a post without rows is done or has failed.
absl::Status Carry(Transport& transport, uint64_t post_id, absl::Duration timeout) {
  EPLB_ASSIGN_OR_RETURN(const Ticket ticket,
                        transport.Post({.post_id = post_id, .deadline = MonotonicNow() + timeout}));
  return Finish(transport, ticket).status();
}

class NcclMeetingTest : public ::testing::Test {
 protected:
  // The vote said no: the communicator is dropped on all ranks, to be made anew.
  void DropAll() {
    RunRanks(kRanks, [&](int32_t rank) {
      EXPECT_TRUE(transports_[rank]->Abort().ok());
      EXPECT_TRUE(transports_[rank]->DropShared().ok());
    });
  }

  Transports transports_ = MakeSmallPieceNcclWorld(kRanks, 4096);
};

TEST_F(NcclMeetingTest, ACommunicatorThatWasDroppedIsMadeAnew) {
  for (const uint64_t post_id : {1, 2}) {
    DropAll();
    RunRanks(kRanks, [&](int32_t rank) {
      const absl::Status status = Carry(*transports_[rank], post_id, absl::Seconds(30));
      EXPECT_TRUE(status.ok()) << status;
    });
  }
}

TEST_F(NcclMeetingTest, ARankThatRefusesThePostEndsTheMeetingOnAllAtOnce) {
  DropAll();
  RunRanks(kRanks, [&](int32_t rank) {
    if (rank == 1) {
      const auto refused = transports_[rank]->Post(
          {.post_id = 1,
           .receives = {{.from = RankId{0}, .staging_offset = 1 << 20, .num_bytes = 8}},
           .deadline = MonotonicNow() + absl::Minutes(10)});
      EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
      return;
    }
    const absl::Status status = Carry(*transports_[rank], 1, absl::Minutes(10));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("NCCL communicator of post 1: rank 1 ended it"));
  });
  DropAll();
  RunRanks(kRanks, [&](int32_t rank) {
    const absl::Status status = Carry(*transports_[rank], 2, absl::Seconds(30));
    EXPECT_TRUE(status.ok()) << status;
  });
}

TEST_F(NcclMeetingTest, ARankThatIsGoneEndsTheMeetingOnAllAtOnce) {
  DropAll();
  transports_[2].reset();
  RunRanks(2, [&](int32_t rank) {
    const absl::Status status = Carry(*transports_[rank], 1, absl::Minutes(10));
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 is gone"));
  });
}

TEST_F(NcclMeetingTest, WithoutARankTheDeadlineSaysWhatIsMissing) {
  DropAll();
  RunRanks(2, [&](int32_t rank) {
    const absl::Status status = Carry(*transports_[rank + 1], 1, absl::Milliseconds(200));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 0 has sent no id for an NCCL communicator"));
  });
}

// The rank with the fault ends the post, which the others are told.
TEST_F(NcclMeetingTest, AnErrorWhileACommunicatorBeginsEndsTheMeetingAndTheNextOneWorks) {
  auto* const num_communicators =
      OfFakeNccl<decltype(fakeNcclNumCommunicators)>("fakeNcclNumCommunicators");
  DropAll();
  const int num_before = num_communicators();
  uint64_t post_id = 0;
  for (const char* kind : {"init_error,code=1", "init_async_error,code=3"}) {
    for (const int32_t faulty : {0, 1}) {
      SCOPED_TRACE(absl::StrCat(kind, " on rank ", faulty));
      DropAll();
      ++post_id;
      setenv("EPLB_FAKE_NCCL_FAULTS", absl::StrCat("rank=", faulty, ",kind=", kind).c_str(), 1);
      RunRanks(kRanks, [&](int32_t rank) {
        const absl::Status status = Carry(*transports_[rank], post_id, absl::Minutes(10));
        EXPECT_EQ(status.code(),
                  rank == faulty ? absl::StatusCode::kInternal : absl::StatusCode::kAborted)
            << status;
        EXPECT_TRUE(transports_[rank]->Abort().ok());
      });
      unsetenv("EPLB_FAKE_NCCL_FAULTS");
      DropAll();
      EXPECT_EQ(num_communicators(), num_before) << "one that failed is aborted as well";
      ++post_id;
      RunRanks(kRanks, [&](int32_t rank) {
        const absl::Status status = Carry(*transports_[rank], post_id, absl::Seconds(30));
        EXPECT_TRUE(status.ok()) << status;
      });
    }
  }
}

TEST_F(NcclMeetingTest, ACommunicatorThatNeverBeginsIsGivenUpAtTheDeadline) {
  DropAll();
  setenv("EPLB_FAKE_NCCL_FAULTS", "rank=1,kind=init_hang", 1);
  RunRanks(kRanks, [&](int32_t rank) {
    const absl::Status status = Carry(*transports_[rank], 1, absl::Milliseconds(500));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("communicator"));
    EXPECT_TRUE(transports_[rank]->Abort().ok());
  });
  unsetenv("EPLB_FAKE_NCCL_FAULTS");
  DropAll();
  RunRanks(kRanks, [&](int32_t rank) {
    const absl::Status status = Carry(*transports_[rank], 2, absl::Seconds(30));
    EXPECT_TRUE(status.ok()) << status;
  });
}

// Its kernels may still write, so the rank may not vote any more. In a child, since what they may
// touch is never freed.
TEST(NcclMeetingDeathTest, AnAbortThatFailsIsAnErrorForEver) {
  EXPECT_EXIT(
      {
        setenv("EPLB_FAKE_NCCL_FAULTS", "kind=abort_error,code=1", 1);
        const Transports transports = MakeSmallPieceNcclWorld(2, 4096);
        for (int turn = 0; turn < 2; ++turn) {
          const absl::Status status = transports[0]->DropShared();
          std::fprintf(stderr, "%s\n", status.ToString().c_str());
        }
        const auto ticket =
            transports[0]->Post({.post_id = 1, .deadline = MonotonicNow() + absl::Seconds(30)});
        std::fprintf(stderr, "%s\n", ticket.status().ToString().c_str());
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "(INTERNAL: ncclCommAbort: unhandled cuda error.*\n){3}");
}

}  // namespace
}  // namespace eplb
