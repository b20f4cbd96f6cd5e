// Errors of the C ABI: every wrong call gets a code and a message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>

#include "client/c/eplb.h"
#include "tests/client/c/c_rank.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<std::string>> Alone(std::string_view bytes) {
  return std::vector<std::string>{std::string(bytes)};
}

template <class Struct>
Struct Sized() {
  Struct empty = {};
  empty.struct_size = sizeof(empty);
  return empty;
}

// A job of one rank, which needs no peer.
class CallsTest : public ::testing::Test {
 protected:
  void Start() {
    ASSERT_EQ(rank_.Connect(), EPLB_OK) << rank_.message();
    ASSERT_EQ(rank_.Register(rank_.MakeTensors()), EPLB_OK) << rank_.message();
  }
  eplb_client* client() { return rank_.client(); }
  // Calls every function that acts.
  std::vector<int32_t> ActWith(eplb_client* client) {
    const int64_t counts[kSmallExperts] = {};
    const std::vector<eplb_tensor> none;
    return {eplb_client_register_experts(client, none.data(), 0),
            eplb_client_check_experts(
                client, [](void*, int32_t, int32_t, uint64_t*) { return int32_t{0}; }, nullptr,
                nullptr),
            eplb_client_carry(client, nullptr, 0, nullptr),
            eplb_client_reduce_gradients(client, nullptr, 0, nullptr),
            eplb_client_broadcast_weights(client, nullptr, 0, nullptr),
            eplb_client_expert_squares(client, nullptr, 0, nullptr, nullptr, 0),
            eplb_client_record(client, 0, counts, kSmallExperts),
            eplb_client_record_split(client, 0, counts, kSmallExperts),
            eplb_client_step_boundary(client, 0, nullptr, nullptr)};
  }
  std::vector<int32_t> ReadWith(eplb_client* client) {
    auto placement = Sized<eplb_placement>();
    auto tables = Sized<eplb_device_tables>();
    auto stats = Sized<eplb_stats>();
    const char* text = nullptr;
    return {eplb_client_placement(client, &placement), eplb_client_device_tables(client, &tables),
            eplb_client_transport(client, &text), eplb_client_run_id(client, &text),
            eplb_client_stats(client, &stats)};
  }

  CRank rank_{0, 1, &Alone};
};

TEST_F(CallsTest, VersionsAndCodeNames) {
  EXPECT_STREQ(eplb_version(), "0.1.0");
  EXPECT_EQ(eplb_abi_version(), EPLB_ABI_VERSION);
  EXPECT_STREQ(eplb_code_name(EPLB_OK), "OK");
  EXPECT_STREQ(eplb_code_name(EPLB_UNAUTHENTICATED), "Unauthenticated");
  EXPECT_STREQ(eplb_code_name(17), "Unknown");
  EXPECT_STREQ(eplb_code_name(-1), "Unknown");
}

TEST_F(CallsTest, NullClientIsInvalidArgumentEverywhere) {
  EXPECT_EQ(eplb_client_create(nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_THAT(ActWith(nullptr), ::testing::Each(EPLB_INVALID_ARGUMENT));
  EXPECT_STREQ(eplb_client_message(nullptr), "step_boundary: client is NULL");
  EXPECT_THAT(ReadWith(nullptr), ::testing::Each(EPLB_INVALID_ARGUMENT));
  EXPECT_EQ(eplb_client_connect(nullptr, &rank_.options, &RunAllGather, nullptr),
            EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_client_connect_through_daemon(nullptr, &rank_.options), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_client_on_wait(nullptr, nullptr, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_client_close(nullptr, nullptr), EPLB_INVALID_ARGUMENT);
  eplb_client_destroy(nullptr);
}

TEST_F(CallsTest, NullArgumentsAreNamed) {
  EXPECT_EQ(eplb_client_connect(client(), nullptr, &RunAllGather, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "options is NULL");
  EXPECT_EQ(eplb_client_connect(client(), &rank_.options, nullptr, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "all_gather is NULL");
  EXPECT_EQ(eplb_client_connect_through_daemon(client(), &rank_.options), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "endpoint: empty, expected that of an eplbd");
  Start();
  EXPECT_EQ(eplb_client_record(client(), 0, nullptr, 4), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "counts is NULL");
  EXPECT_EQ(eplb_client_record_step_time(client(), -1), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_client_record_step_time(client(), 0.25), EPLB_OK);
  EXPECT_EQ(eplb_client_vote_no(client(), ""), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "reason is empty");
  EXPECT_EQ(eplb_client_vote_no(client(), "gradients accumulate"), EPLB_OK);
  EXPECT_EQ(eplb_client_record_split(client(), 0, nullptr, 4), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "quotas is NULL");
  EXPECT_EQ(eplb_client_register_experts(client(), nullptr, 3), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "tensors is NULL");
  EXPECT_EQ(eplb_client_check_experts(client(), nullptr, nullptr, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "probe is NULL");
  const int32_t slots[] = {0, 1, 2, 3};
  EXPECT_EQ(eplb_client_carry(client(), nullptr, 4, nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(), "physical_to_logical_map is NULL, num_cells is 4");
  EXPECT_EQ(eplb_client_carry(client(), slots, 0, nullptr), EPLB_INVALID_ARGUMENT);
  ExpectInvalid(eplb_client_row_placement(client(), nullptr), "placement is NULL");
  ExpectInvalid(eplb_client_placement(client(), nullptr), "placement is NULL");
  EXPECT_EQ(eplb_client_transport(client(), nullptr), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(eplb_answers_add(nullptr, nullptr, 0), EPLB_INVALID_ARGUMENT);
  eplb_callback_message(nullptr);
}

TEST_F(CallsTest, CallsBeforeConnectAndAfterCloseAreRefused) {
  EXPECT_THAT(ActWith(client()), ::testing::Each(EPLB_FAILED_PRECONDITION));
  EXPECT_EQ(rank_.message(), "step_boundary was called before connect");
  EXPECT_THAT(ReadWith(client()), ::testing::Each(EPLB_FAILED_PRECONDITION));
  Start();
  EXPECT_EQ(rank_.Connect(), EPLB_FAILED_PRECONDITION);
  EXPECT_EQ(rank_.message(), "connect was called twice");
  EXPECT_EQ(eplb_client_close(client(), "finished"), EPLB_OK);
  EXPECT_EQ(eplb_client_close(client(), "finished"), EPLB_OK);
  EXPECT_THAT(ActWith(client()), ::testing::Each(EPLB_FAILED_PRECONDITION));
  EXPECT_EQ(rank_.message(), "step_boundary was called after close");
  EXPECT_EQ(rank_.Connect(), EPLB_FAILED_PRECONDITION);
  EXPECT_EQ(rank_.message(), "connect was called after close");
  EXPECT_THAT(ReadWith(client()), ::testing::Each(EPLB_OK)) << "until destroy";
}

TEST_F(CallsTest, ClosedBeforeConnectStaysClosed) {
  EXPECT_EQ(eplb_client_close(client(), nullptr), EPLB_OK);
  EXPECT_EQ(rank_.Record(), EPLB_FAILED_PRECONDITION);
  EXPECT_EQ(rank_.message(), "record was called after close");
}

TEST_F(CallsTest, WrongStructSizesAreNamedBeforeAnythingIsDone) {
  rank_.options.struct_size = 0;
  EXPECT_EQ(rank_.Connect(), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.message(),
            "options.struct_size is 0, expected sizeof, which is 256 in this library");
  rank_.options.struct_size = sizeof(rank_.options);
  ASSERT_EQ(rank_.Connect(), EPLB_OK) << rank_.message();
  std::vector<eplb_tensor> tensors = rank_.MakeTensors();
  tensors[1].struct_size = 8;
  EXPECT_EQ(rank_.Register(tensors), EPLB_INVALID_ARGUMENT);
  EXPECT_THAT(rank_.message(), HasSubstr("tensors[1].struct_size is 8"));
  tensors[1].struct_size = sizeof(eplb_tensor);
  ASSERT_EQ(rank_.Register(tensors), EPLB_OK) << rank_.message();
  eplb_boundary boundary = {};
  EXPECT_EQ(rank_.Step(0, &boundary), EPLB_INVALID_ARGUMENT);
  EXPECT_EQ(rank_.Step(0), EPLB_OK) << "the step was not taken";
}

TEST_F(CallsTest, ProgramOfANewerHeaderWorksUnlessItAsksForMore) {
  struct {
    eplb_client_options known;
    int64_t unknown;
  } options = {rank_.options, 0};
  options.known.struct_size = sizeof(options);
  AllGather all_gather = &Alone;
  options.unknown = 5;
  EXPECT_EQ(eplb_client_connect(client(), &options.known, &RunAllGather, &all_gather),
            EPLB_INVALID_ARGUMENT);
  EXPECT_THAT(rank_.message(), HasSubstr("options sets a field that this library, 0.1.0, does not "
                                         "know"));
  options.unknown = 0;
  EXPECT_EQ(eplb_client_connect(client(), &options.known, &RunAllGather, &all_gather), EPLB_OK)
      << rank_.message();
  struct {
    eplb_placement known;
    int64_t unknown;
  } placement = {Sized<eplb_placement>(), 77};
  placement.known.struct_size = sizeof(placement);
  EXPECT_EQ(eplb_client_placement(client(), &placement.known), EPLB_OK);
  EXPECT_EQ(placement.known.num_layers, kSmallLayers);
  EXPECT_EQ(placement.unknown, 0) << "what the library does not know is 0";
}

TEST_F(CallsTest, MessagesAreThoseOfTheClientAndOfTheThread) {
  CRank other(0, 1, &Alone);
  EXPECT_EQ(rank_.Record(), EPLB_FAILED_PRECONDITION);
  EXPECT_EQ(other.message(), "");
  EXPECT_EQ(rank_.message(), "record was called before connect");
  std::thread([] { EXPECT_STREQ(eplb_last_message(), ""); }).join();
}

TEST_F(CallsTest, TransportTablesAndRunAreThereAfterRegister) {
  Start();
  const char* text = nullptr;
  EXPECT_EQ(eplb_client_transport(client(), &text), EPLB_OK);
  EXPECT_STREQ(text, "host");
  EXPECT_EQ(eplb_client_run_id(client(), &text), EPLB_OK);
  EXPECT_TRUE(std::string(text).starts_with("run-0.")) << text;
  EXPECT_EQ(std::string(text).size(), 22);
  auto tables = Sized<eplb_device_tables>();
  EXPECT_EQ(eplb_client_device_tables(client(), &tables), EPLB_OK);
  EXPECT_EQ(tables.num_slots, 4);
  EXPECT_EQ(tables.physical_to_logical_map[3], 3);
  EXPECT_EQ(tables.first_replica[4], 4);
}

// The child writes what its calls gave as its exit code.
TEST_F(CallsTest, ForkedChildDoesNothingSaysSoOnceAndHarmsNobody) {
  Start();
  ASSERT_EQ(rank_.Step(0), EPLB_OK);
  std::array<int, 2> said = {};
  ASSERT_EQ(pipe(said.data()), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    dup2(said[1], STDERR_FILENO);
    bool fine = true;
    for (const int32_t code : ActWith(client())) fine = fine && code == EPLB_OK;
    for (const int32_t code : ReadWith(client())) fine = fine && code == EPLB_OK;
    auto boundary = Sized<eplb_boundary>();
    fine = fine && eplb_client_step_boundary(client(), 99, nullptr, &boundary) == EPLB_OK &&
           boundary.voted == 0 && std::strcmp(boundary.reason, "") == 0;
    fine = fine && eplb_client_close(client(), "child") == EPLB_OK;
    eplb_client_destroy(client());
    _exit(fine ? 0 : 1);
  }
  close(said[1]);
  std::string text(4096, '\0');
  size_t size = 0;
  ssize_t got = 0;
  while ((got = read(said[0], &text[size], text.size() - size)) > 0) {
    size += static_cast<size_t>(got);
  }
  close(said[0]);
  text.resize(size);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(text,
            "eplb: this process was forked from a rank of a job: calls on the client that it was "
            "forked with do nothing here; the parent process is not affected\n");
  EXPECT_EQ(rank_.Step(1), EPLB_OK) << "the parent goes on";
}

TEST_F(CallsTest, ForkedChildCanHaveAClientOfItsOwnWhileNobodySpokeToADaemon) {
  Start();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    CRank own(0, 1, &Alone);
    const bool fine = own.Connect() == EPLB_OK && own.Register(own.MakeTensors()) == EPLB_OK &&
                      own.Step(0) == EPLB_OK;
    _exit(fine ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(CallsTest, ForkedChildOfAProcessThatSpokeToADaemonIsToldToUseExec) {
  // In a process of its own, so that the other tests' children may connect.
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    CRank first(0, 1, &Alone);
    first.options.endpoint = "127.0.0.1:1";  // no daemon there: that is no error
    if (first.Connect() != EPLB_OK) _exit(2);
    const pid_t child = fork();
    if (child == 0) {
      CRank second(0, 1, &Alone);
      second.options.endpoint = "127.0.0.1:1";
      const bool refused = second.Connect() == EPLB_FAILED_PRECONDITION &&
                           second.message().find("start ranks by exec") != std::string::npos;
      _exit(refused ? 0 : 1);
    }
    int status = -1;
    _exit(waitpid(child, &status, 0) == child && status == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace eplb
