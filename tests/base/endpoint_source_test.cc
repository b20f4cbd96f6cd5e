#include "base/endpoint_source.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/cli/formats/test_files.h"

namespace eplb {
namespace {

constexpr char kName[] = "_eplb._tcp.train.test";

void AddNumber(std::string& message, int number) {
  message += static_cast<char>(number >> 8);
  message += static_cast<char>(number & 0xff);
}

std::string DnsName(const std::string& dotted) {
  std::string bytes;
  for (size_t at = 0; at < dotted.size();) {
    const size_t end = std::min(dotted.find('.', at), dotted.size());
    bytes += static_cast<char>(end - at);
    bytes += dotted.substr(at, end - at);
    at = end + 1;
  }
  return bytes + '\0';
}

struct Srv {
  int priority;
  int weight;
  int port;
  const char* target;
};

// The answer to a question of `id`, as a name server sends it.
std::string SrvAnswer(int id, const std::vector<Srv>& records, bool with_address = false) {
  std::string message;
  AddNumber(message, id);
  AddNumber(message, 0x8180);  // an answer, recursion desired and available
  for (const int count : {1, static_cast<int>(records.size()) + (with_address ? 1 : 0), 0, 0}) {
    AddNumber(message, count);
  }
  message += DnsName(kName);
  for (const int number : {33, 1}) AddNumber(message, number);
  for (const Srv& record : records) {
    std::string data;
    for (const int number : {record.priority, record.weight, record.port}) AddNumber(data, number);
    data += DnsName(record.target);
    AddNumber(message, 0xc00c);  // the name of the question
    for (const int number : {33, 1, 0, 60, static_cast<int>(data.size())}) {
      AddNumber(message, number);
    }
    message += data;
  }
  if (!with_address) return message;
  AddNumber(message, 0xc00c);
  for (const int number : {1, 1, 0, 60, 4}) AddNumber(message, number);
  return message + std::string("\x7f\0\0\1", 4);
}

absl::StatusOr<std::string> EndpointsOf(const std::string& answer) {
  return EndpointsOfSrvAnswer({reinterpret_cast<const uint8_t*>(answer.data()), answer.size()});
}

TEST(SrvAnswerTest, RecordsAreInOneOrderWhateverTheServersOrderIs) {
  const std::vector<Srv> rising = {{1, 5, 29610, "b.test"},
                                   {1, 9, 29610, "c.test"},
                                   {0, 0, 1234, "a.test"},
                                   {1, 5, 29611, "a.test"}};
  const std::vector<Srv> falling(rising.rbegin(), rising.rend());
  const char expected[] = "a.test:1234,c.test:29610,a.test:29611,b.test:29610";
  EXPECT_EQ(*EndpointsOf(SrvAnswer(1, rising)), expected);
  EXPECT_EQ(*EndpointsOf(SrvAnswer(1, falling, true)), expected);
}

TEST(SrvAnswerTest, NoRecordAndTheRootAsTargetAreNotFound) {
  EXPECT_TRUE(absl::IsNotFound(EndpointsOf(SrvAnswer(1, {})).status()));
  EXPECT_TRUE(absl::IsNotFound(EndpointsOf(SrvAnswer(1, {{0, 0, 1, ""}})).status()));
}

TEST(SrvAnswerTest, MoreRecordsThanAListMayHaveAreRefused) {
  const std::vector<Srv> many(9, {0, 0, 1, "a.test"});
  EXPECT_TRUE(absl::IsInvalidArgument(EndpointsOf(SrvAnswer(1, many)).status()));
}

TEST(SrvAnswerTest, EveryCutAnswerIsRefused) {
  const std::string whole = SrvAnswer(1, {{0, 0, 1234, "a.test"}, {1, 0, 1234, "b.test"}});
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_TRUE(absl::IsInvalidArgument(EndpointsOf(whole.substr(0, bytes)).status())) << bytes;
  }
}

class EndpointSourceTest : public FilesTest {};

TEST_F(EndpointSourceTest, PlainEndpointsAreAsTheyAre) {
  for (const char* text : {"a:1", "a:1,b:2", "unix:/run/x.sock", ""}) {
    EXPECT_FALSE(IsEndpointSource(text));
    EXPECT_EQ(*ReadEndpointSource(text), text);
  }
}

TEST_F(EndpointSourceTest, ASourceWithoutANameIsRefused) {
  for (const char* text : {"env:", "file:", "srv:"}) {
    EXPECT_TRUE(IsEndpointSource(text));
    EXPECT_TRUE(absl::IsInvalidArgument(CheckEndpointSource(text)));
    EXPECT_TRUE(absl::IsInvalidArgument(ReadEndpointSource(text).status()));
  }
}

TEST_F(EndpointSourceTest, AVariableHasTheEndpointOrAnotherSource) {
  unsetenv("EPLB_TEST_WHERE");
  EXPECT_EQ(ReadEndpointSource("env:EPLB_TEST_WHERE").status().message(),
            "env:EPLB_TEST_WHERE: the variable is not set");
  setenv("EPLB_TEST_WHERE", "a:1,b:2", 1);
  EXPECT_EQ(*ReadEndpointSource("env:EPLB_TEST_WHERE"), "a:1,b:2");
  setenv("EPLB_TEST_WHERE", ("file:" + Write("where", "c:3\n")).c_str(), 1);
  EXPECT_EQ(*ReadEndpointSource("env:EPLB_TEST_WHERE"), "c:3");
  setenv("EPLB_TEST_WHERE", "env:EPLB_TEST_WHERE", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadEndpointSource("env:EPLB_TEST_WHERE").status()));
  unsetenv("EPLB_TEST_WHERE");
}

TEST_F(EndpointSourceTest, AFileIsWaitedFor) {
  const std::string path = Path("where");
  std::thread writer([this] {
    Write("where", "");  // a script creates it before it writes
    Write("where", "\n  head:29610 \nlater:1\n");
  });
  EXPECT_EQ(*ReadEndpointSource("file:" + path, {.deadline = absl::Seconds(60)}), "head:29610");
  writer.join();
}

TEST_F(EndpointSourceTest, AFileThatNobodyWritesEndsAtTheDeadline) {
  const absl::Status status =
      ReadEndpointSource("file:" + Path("where"), {.deadline = absl::Milliseconds(150)}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(), Path("where") + ": no daemon wrote its address within 150ms");
}

// A name server on loopback for one question.
class NameServer {
 public:
  NameServer() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~NameServer() { close(socket_); }
  NameServer(const NameServer&) = delete;
  NameServer& operator=(const NameServer&) = delete;

  const std::string& address() const { return address_; }

  void AnswerOne(const std::vector<Srv>& records) const {
    constexpr int kWaitMs = 20000;
    pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&waiting, 1, kWaitMs), 1);
    std::string question(512, '\0');
    sockaddr_in from{};
    socklen_t size = sizeof(from);
    const ssize_t bytes = recvfrom(socket_, question.data(), question.size(), 0,
                                   reinterpret_cast<sockaddr*>(&from), &size);
    ASSERT_GT(bytes, 12);
    const int id = static_cast<uint8_t>(question[0]) << 8 | static_cast<uint8_t>(question[1]);
    const std::string answer = SrvAnswer(id, records);
    ASSERT_EQ(sendto(socket_, answer.data(), answer.size(), 0,
                     reinterpret_cast<const sockaddr*>(&from), size),
              static_cast<ssize_t>(answer.size()));
  }

 private:
  const int socket_;
  std::string address_;
};

TEST_F(EndpointSourceTest, RecordsComeFromANameServer) {
  const NameServer server;
  std::thread answering([&server] {
    server.AnswerOne({{1, 0, 29610, "second.train.test"}, {0, 0, 29610, "first.train.test"}});
  });
  const absl::StatusOr<std::string> endpoints =
      ReadEndpointSource(std::string("srv:") + kName, {.name_server = server.address()});
  answering.join();
  ASSERT_TRUE(endpoints.ok()) << endpoints.status();
  EXPECT_EQ(*endpoints, "first.train.test:29610,second.train.test:29610");
}

TEST_F(EndpointSourceTest, ASilentNameServerIsUnavailable) {
  const NameServer silent;
  const absl::Status status =
      ReadEndpointSource(std::string("srv:") + kName, {.name_server = silent.address()}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message(), std::string("srv:") + kName + ": no name server answered");
}

}  // namespace
}  // namespace eplb
