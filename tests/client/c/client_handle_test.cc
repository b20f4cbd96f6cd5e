#include "client/c/client_handle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>

#include "client/c/arguments.h"

namespace eplb::c {

namespace {

TEST(ClientHandleTest, ACallNeedsAClientThatIsConnectedAndOpen) {
  EXPECT_EQ(CheckState(nullptr, "record", Needs::kNothing),
            absl::InvalidArgumentError("record: client is NULL"));
  eplb_client handle;
  EXPECT_TRUE(CheckState(&handle, "close", Needs::kNothing).ok());
  EXPECT_EQ(CheckState(&handle, "record", Needs::kOpen),
            absl::FailedPreconditionError("record was called before connect"));
  handle.closed = true;
  EXPECT_EQ(CheckState(&handle, "record", Needs::kConnected),
            absl::FailedPreconditionError("record was called after close"));
}

TEST(ClientHandleTest, OneCallIsUnderWayAtATime) {
  eplb_client handle;
  {
    const Turn first(handle, "step_boundary");
    EXPECT_TRUE(first.status().ok());
    const Turn second(handle, "record");
    EXPECT_EQ(second.status(), absl::FailedPreconditionError(
                                   "record was called while step_boundary is under way, in "
                                   "another thread or in the one whose callback this is"));
  }
  EXPECT_TRUE(Turn(handle, "record").status().ok());
}

TEST(ClientHandleTest, TheMessageIsThatOfTheLastCallThatFailed) {
  eplb_client handle;
  EXPECT_EQ(CallOnTrainingThread(&handle, "one", Needs::kNothing,
                                 [] { return absl::AbortedError("first"); }),
            EPLB_ABORTED);
  EXPECT_EQ(handle.message, "first");
  EXPECT_EQ(CallOnTrainingThread(&handle, "two", Needs::kNothing, [] { return absl::OkStatus(); }),
            EPLB_OK);
  EXPECT_EQ(handle.message, "first");
  EXPECT_EQ(CallOnTrainingThread(&handle, "three", Needs::kNothing,
                                 []() -> absl::Status { throw std::runtime_error("second"); }),
            EPLB_INTERNAL);
  EXPECT_NE(handle.message.find("second"), std::string::npos) << handle.message;
}

TEST(ClientHandleTest, AMessageHasNothingThatATerminalObeys) {
  eplb_client handle;
  (void)CallOnTrainingThread(&handle, "one", Needs::kNothing, [] {
    return absl::AbortedError("eplbd says \x1b[2J\rno\u009b31m\xff");
  });
  EXPECT_EQ(handle.message, "eplbd says ?[2J no?31m?");
  EXPECT_STREQ(eplb_last_message(), "eplbd says ?[2J no?31m?");
}

TEST(ClientHandleTest, ACallInsideACallLeavesTheOthersMessage) {
  eplb_client handle;
  const int32_t code = CallOnTrainingThread(&handle, "outer", Needs::kNothing, [&] {
    EXPECT_EQ(
        CallOnTrainingThread(&handle, "inner", Needs::kNothing, [] { return absl::OkStatus(); }),
        EPLB_FAILED_PRECONDITION);
    EXPECT_EQ(handle.message, "");
    return absl::OkStatus();
  });
  EXPECT_EQ(code, EPLB_OK);
}

TEST(ClientHandleTest, LooksAreAllowedInsideACall) {
  eplb_client handle;
  const Turn turn(handle, "step_boundary");
  EXPECT_EQ(ReadOnlyCall(&handle, "stats", Needs::kNothing, [] { return absl::OkStatus(); }),
            EPLB_OK);
  EXPECT_EQ(ReadOnlyCall(&handle, "stats", Needs::kConnected, [] { return absl::OkStatus(); }),
            EPLB_FAILED_PRECONDITION);
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A caller whose header knows fields that this library does not.
struct NewerTensor {
  eplb_tensor known;
  int64_t unknown;
};

eplb_tensor Weight(const char* name, size_t struct_size = sizeof(eplb_tensor)) {
  eplb_tensor tensor = {};
  tensor.struct_size = struct_size;
  tensor.name = name;
  return tensor;
}

TEST(CallbacksTest, AllGatherGivesTheBytesAndTakesTheAnswersInTheirOrder) {
  std::string given;
  const AllGather all_gather = MakeAllGather(
      [](void* user, const void* bytes, size_t num_bytes, eplb_answers* answers) {
        static_cast<std::string*>(user)->assign(static_cast<const char*>(bytes), num_bytes);
        (void)eplb_answers_add(answers, "first", 5);
        return eplb_answers_add(answers, bytes, num_bytes);
      },
      &given, 1);
  const auto answers = all_gather(std::string_view("mi\0ne", 5));
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_EQ(given, std::string_view("mi\0ne", 5));
  EXPECT_THAT(*answers, ElementsAre("first", given));
}

TEST(CallbacksTest, AnotherAnswerInThePlaceOfOurOwnIsNoticed) {
  const AllGather all_gather =
      MakeAllGather([](void*, const void*, size_t,
                       eplb_answers* answers) { return eplb_answers_add(answers, "another's", 9); },
                    nullptr, 0);
  const absl::Status status = all_gather("mine").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the answer of rank 0 is not what this rank 0 gave"));
}

TEST(CallbacksTest, CodesTextsAndExceptionsOfCallbacksAreTheCallers) {
  const AllGather refuses = MakeAllGather(
      [](void*, const void*, size_t, eplb_answers*) {
        eplb_callback_message("no route");
        return int32_t{EPLB_UNAVAILABLE};
      },
      nullptr, 0);
  EXPECT_EQ(refuses("").status(), absl::UnavailableError("all_gather: no route"));
  const ExpertProbe throws = MakeProbe(
      [](void*, int32_t, int32_t, uint64_t*) -> int32_t { throw std::runtime_error("bad"); },
      nullptr);
  const absl::Status thrown = throws(0, 0).status();
  EXPECT_EQ(thrown.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(thrown.message()), HasSubstr("bad"));
}

TEST(CallbacksTest, ProbeIsAskedForItsLayerAndSlot) {
  int32_t calls = 0;
  const ExpertProbe probe = MakeProbe(
      [](void* user, int32_t layer, int32_t local_slot, uint64_t* digest) {
        ++*static_cast<int32_t*>(user);
        *digest = static_cast<uint64_t>(layer) * 10 + static_cast<uint64_t>(local_slot);
        return int32_t{EPLB_OK};
      },
      &calls);
  EXPECT_EQ(probe(3, 4).value(), 34U);
  EXPECT_EQ(calls, 1);
}

TEST(CallbacksTest, AnswersHaveNoNullArguments) {
  EXPECT_EQ(eplb_answers_add(nullptr, "a", 1), EPLB_INVALID_ARGUMENT);
}

TEST(CallbacksTest, EveryFieldOfATensorIsRead) {
  std::array<std::byte, 64> memory{};
  eplb_tensor tensor = Weight("w");
  tensor.base = memory.data();
  tensor.row_bytes = 8;
  tensor.row_stride = 16;
  tensor.num_rows = 4;
  tensor.layer = 5;
  tensor.role = EPLB_STATE;
  const auto views = ReadTensors(&tensor, 1);
  ASSERT_TRUE(views.ok()) << views.status();
  const ExpertTensorView& view = views->at(0);
  EXPECT_EQ(view.name, "w");
  EXPECT_EQ(view.role, Role::kState);
  EXPECT_EQ(view.layer, 5);
  EXPECT_EQ(view.base, memory.data());
  EXPECT_EQ(view.num_rows, 4);
  EXPECT_EQ(view.row_bytes, 8);
  EXPECT_EQ(view.row_stride, 16);
  EXPECT_FALSE(view.rebuild);
}

TEST(CallbacksTest, TensorsLieAsFarApartAsTheCallersHeaderSays) {
  std::array<NewerTensor, 2> tensors = {
      {{Weight("a", sizeof(NewerTensor)), 0}, {Weight("b", sizeof(NewerTensor)), 0}}};
  const auto views = ReadTensors(&tensors[0].known, 2);
  ASSERT_TRUE(views.ok()) << views.status();
  EXPECT_EQ(views->at(1).name, "b");
  tensors[1].unknown = 1;
  EXPECT_THAT(std::string(ReadTensors(&tensors[0].known, 2).status().message()),
              HasSubstr("tensors[1] sets a field that this library"));
}

TEST(CallbacksTest, WhatIsNoTensorIsNamed) {
  const auto refusal = [](const eplb_tensor& second) {
    const std::array<eplb_tensor, 2> tensors = {Weight("a"), second};
    const absl::Status status = ReadTensors(tensors.data(), 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(Weight(nullptr)), "tensors[1]: name is NULL");
  eplb_tensor other = Weight("b");
  other.role = 9;
  EXPECT_THAT(refusal(other), HasSubstr("tensors[1] \"b\": role 9, expected EPLB_WEIGHT (0)"));
  other = Weight("b");
  other.reserved = 1;
  EXPECT_EQ(refusal(other), "tensors[1] \"b\": reserved 1, expected 0");
  EXPECT_THAT(refusal(Weight("b", 8)), HasSubstr("tensors[1].struct_size is 8"));
  EXPECT_EQ(ReadTensors(nullptr, 1).status(), absl::InvalidArgumentError("tensors is NULL"));
  EXPECT_TRUE(ReadTensors(nullptr, 0).ok());
}

}  // namespace

}  // namespace eplb::c
