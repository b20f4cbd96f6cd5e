#include "base/endpoint_source.h"

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"

namespace eplb {

namespace {

constexpr std::string_view kVariable = "env:";
constexpr std::string_view kFile = "file:";
constexpr std::string_view kRecord = "srv:";
constexpr int64_t kMaxFile = 64 << 10;
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
constexpr size_t kMaxAnswer = 16 << 10;  // largest answer of DNS
constexpr int kTries = 2;                // with each name server, 1 s each
constexpr size_t kMaxRecords = 8;        // same bound as for an endpoint list

std::string_view PrefixOf(std::string_view text) {
  for (const std::string_view prefix : {kVariable, kFile, kRecord}) {
    if (text.starts_with(prefix)) return prefix;
  }
  return "";
}

std::string FirstLine(std::string_view content) {
  for (const TextLine& line : SplitLines(content)) {
    std::string text(line.text);
    absl::StripAsciiWhitespace(&text);
    return text;
  }
  return "";
}

absl::StatusOr<std::string> ReadWhenThere(const std::string& path, absl::Duration deadline) {
  const absl::Time end = MonotonicNow() + deadline;
  while (true) {
    const absl::StatusOr<std::string> content = ReadRegularFile(path, kMaxFile);
    if (!content.ok() && !absl::IsNotFound(content.status())) return content.status();
    std::string line = content.ok() ? FirstLine(*content) : "";
    if (!line.empty()) return line;
    if (MonotonicNow() + kLookAgain >= end) {
      return DeadlineExceeded(path, ": no daemon wrote its address within ",
                              absl::FormatDuration(deadline));
    }
    absl::SleepFor(kLookAgain);
  }
}

struct SrvRecord {
  uint16_t priority = 0;
  uint16_t weight = 0;
  uint16_t port = 0;
  std::string target;
};

// Reads a DNS message from its first byte to its last, never beyond.
class DnsReader {
 public:
  explicit DnsReader(std::span<const uint8_t> message) : message_(message) {}

  size_t left() const { return message_.size() - at_; }
  std::optional<uint16_t> Number() {
    if (left() < 2) return std::nullopt;
    const auto number = static_cast<uint16_t>(message_[at_] << 8 | message_[at_ + 1]);
    at_ += 2;
    return number;
  }
  bool Skip(size_t bytes) {
    if (left() < bytes) return false;
    at_ += bytes;
    return true;
  }
  std::optional<std::string> Name() {
    std::array<char, NS_MAXDNAME> name{};
    const int length = dn_expand(message_.data(), message_.data() + message_.size(),
                                 message_.data() + at_, name.data(), name.size());
    if (length < 0) return std::nullopt;
    at_ += static_cast<size_t>(length);
    return std::string(name.data());
  }

 private:
  const std::span<const uint8_t> message_;
  size_t at_ = 0;
};

// nullopt: not the record that the bytes claim to be. An empty target: another kind of record.
std::optional<SrvRecord> ReadRecord(DnsReader& reader) {
  constexpr size_t kClassAndTtl = 6;
  if (!reader.Name()) return std::nullopt;
  const std::optional<uint16_t> type = reader.Number();
  if (!type || !reader.Skip(kClassAndTtl)) return std::nullopt;
  const std::optional<uint16_t> length = reader.Number();
  if (!length || reader.left() < *length) return std::nullopt;
  if (*type != ns_t_srv) {
    reader.Skip(*length);
    return SrvRecord();
  }
  const std::optional<uint16_t> priority = reader.Number();
  const std::optional<uint16_t> weight = reader.Number();
  const std::optional<uint16_t> port = reader.Number();
  std::optional<std::string> target = reader.Name();
  if (!priority || !weight || !port || !target) return std::nullopt;
  return SrvRecord{*priority, *weight, *port, *std::move(target)};
}

// errors: InvalidArgument.
absl::Status UseNameServer(const std::string& server, struct __res_state& state) {
  const size_t colon = server.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  int port = 0;
  const bool read = colon != std::string::npos &&
                    absl::SimpleAtoi(server.substr(colon + 1), &port) && port > 0 && port < 65536 &&
                    inet_pton(AF_INET, server.substr(0, colon).c_str(), &address.sin_addr) == 1;
  if (!read) return InvalidInput("name_server is \"", server, "\", expected IPV4:PORT");
  address.sin_port = htons(static_cast<uint16_t>(port));
  state.nscount = 1;
  state.nsaddr_list[0] = address;
  return absl::OkStatus();
}

absl::StatusOr<std::string> AskDns(const std::string& name, const std::string& name_server) {
  struct __res_state state {};
  if (res_ninit(&state) != 0) return Unavailable("srv:", name, ": no configuration of DNS");
  const absl::Cleanup close = [&state] { res_nclose(&state); };
  if (!name_server.empty()) EPLB_RETURN_IF_ERROR(UseNameServer(name_server, state));
  state.retrans = 1;
  state.retry = kTries;
  state.options |= RES_USE_EDNS0 | RES_IGNTC;  // without TCP, whose connecting has no deadline
  std::vector<uint8_t> answer(kMaxAnswer);
  const int length = res_nquery(&state, name.c_str(), ns_c_in, ns_t_srv, answer.data(),
                                static_cast<int>(answer.size()));
  if (length < 0) {
    const bool none = state.res_h_errno == HOST_NOT_FOUND || state.res_h_errno == NO_DATA;
    const std::string message =
        absl::StrCat("srv:", name, ": ", none ? "no such record" : "no name server answered");
    return none ? NotFound(message) : Unavailable(message);
  }
  answer.resize(std::min(static_cast<size_t>(length), answer.size()));
  absl::StatusOr<std::string> endpoints = EndpointsOfSrvAnswer(answer);
  if (endpoints.ok()) return endpoints;
  return absl::Status(endpoints.status().code(),
                      absl::StrCat("srv:", name, ": ", endpoints.status().message()));
}

}  // namespace

bool IsEndpointSource(std::string_view text) { return !PrefixOf(text).empty(); }

absl::Status CheckEndpointSource(std::string_view text) {
  if (text.size() > PrefixOf(text).size() && IsEndpointSource(text)) return absl::OkStatus();
  return InvalidInput("endpoint is \"", std::string(text),
                      "\", expected env:NAME, file:PATH or srv:NAME");
}

absl::StatusOr<std::string> EndpointsOfSrvAnswer(std::span<const uint8_t> answer) {
  const absl::Status cut = InvalidInput("the answer is no DNS message");
  constexpr size_t kIdAndFlags = 4;
  constexpr size_t kOtherCounts = 4;
  constexpr size_t kTypeAndClass = 4;
  DnsReader reader(answer);
  if (!reader.Skip(kIdAndFlags)) return cut;
  const std::optional<uint16_t> questions = reader.Number();
  const std::optional<uint16_t> answers = reader.Number();
  if (!questions || !answers || !reader.Skip(kOtherCounts)) return cut;
  for (int i = 0; i < *questions; ++i) {
    if (!reader.Name() || !reader.Skip(kTypeAndClass)) return cut;
  }
  std::vector<SrvRecord> records;
  for (int i = 0; i < *answers; ++i) {
    std::optional<SrvRecord> record = ReadRecord(reader);
    if (!record) return cut;
    // The root as a target: the service is decidedly not there.
    if (!record->target.empty() && record->target != ".") records.push_back(*std::move(record));
  }
  if (records.empty()) return NotFound("no such record");
  if (records.size() > kMaxRecords) {
    return InvalidInput(records.size(), " records, expected at most ", kMaxRecords);
  }
  std::ranges::sort(records, [](const SrvRecord& a, const SrvRecord& b) {
    return std::tuple(a.priority, -int{a.weight}, a.target, a.port) <
           std::tuple(b.priority, -int{b.weight}, b.target, b.port);
  });
  std::string list;
  for (const SrvRecord& record : records) {
    absl::StrAppend(&list, list.empty() ? "" : ",", record.target, ":", record.port);
  }
  return list;
}

absl::StatusOr<std::string> ReadEndpointSource(const std::string& text,
                                               const EndpointSourceOptions& options) {
  if (!IsEndpointSource(text)) return text;
  EPLB_RETURN_IF_ERROR(CheckEndpointSource(text));
  const std::string name = text.substr(PrefixOf(text).size());
  if (text.starts_with(kFile)) return ReadWhenThere(name, options.deadline);
  if (text.starts_with(kRecord)) return AskDns(name, options.name_server);
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return NotFound(text, ": the variable is not set");
  if (std::string_view(value).starts_with(kVariable)) {
    return InvalidInput(text, ": the variable is ", value, ", expected no second variable");
  }
  return ReadEndpointSource(value, options);
}

}  // namespace eplb
