#include "server/http/request.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace eplb {

namespace {

constexpr std::string_view kMethods[] = {"GET",     "HEAD",    "POST",  "PUT",  "DELETE",
                                         "CONNECT", "OPTIONS", "TRACE", "PATCH"};

std::string Decoded(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  const auto digit = [text](size_t at) {
    const char c = at < text.size() ? absl::ascii_tolower(static_cast<unsigned char>(text[at])) : 0;
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && digit(i + 1) >= 0 && digit(i + 2) >= 0) {
      decoded += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
      i += 2;
    } else {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

// Takes the first line off `text`, without its line end.
std::string_view TakeLine(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

bool ParseRequestLine(std::string_view line, HttpRequest& request) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return false;
  const std::string_view version = line.substr(last + 1);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  request.method = line.substr(0, first);
  request.is_http_1_0 = version == "HTTP/1.0";
  if (!request.is_http_1_0 && version != "HTTP/1.1") return false;
  if (!target.starts_with('/') || target.find(' ') != std::string_view::npos) return false;
  SplitTarget(target, request);
  return std::ranges::find(kMethods, request.method) != std::end(kMethods);
}

std::string_view ReasonOf(int status) {
  constexpr std::pair<int, std::string_view> kReasons[] = {{200, "OK"},
                                                           {400, "Bad Request"},
                                                           {404, "Not Found"},
                                                           {405, "Method Not Allowed"},
                                                           {421, "Misdirected Request"},
                                                           {431, "Request Header Fields Too Large"},
                                                           {503, "Service Unavailable"}};
  for (const auto& [code, reason] : kReasons) {
    if (code == status) return reason;
  }
  return "Internal Server Error";
}

}  // namespace

std::vector<std::string_view> HttpRequest::ValuesOf(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, absl::string_view(name.data(), name.size()))) {
      values.push_back(value);
    }
  }
  return values;
}

void SplitTarget(std::string_view target, HttpRequest& request) {
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  request.path = Decoded(target.substr(0, mark), /*plus_is_space=*/false);
  if (mark == std::string_view::npos) return;
  std::string_view rest = target.substr(mark + 1);
  while (!rest.empty()) {
    const size_t end = rest.find('&');
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    request.query.emplace(Decoded(part.substr(0, equals), /*plus_is_space=*/true),
                          Decoded(value, /*plus_is_space=*/true));
  }
}

std::optional<HttpRequest> ParseRequest(std::string_view head) {
  HttpRequest request;
  if (!ParseRequestLine(TakeLine(head), request)) return std::nullopt;
  for (std::string_view line = TakeLine(head); !line.empty(); line = TakeLine(head)) {
    const size_t colon = line.find(':');
    // A blank inside or after a name lets two readers of a head disagree (RFC 9112, section 5.1).
    if (colon == 0 || colon == std::string_view::npos ||
        line.substr(0, colon).find_first_of(" \t") != std::string_view::npos) {
      return std::nullopt;
    }
    const absl::string_view value = absl::StripAsciiWhitespace(
        absl::string_view(line.data() + colon + 1, line.size() - colon - 1));
    request.headers.emplace_back(line.substr(0, colon), std::string(value.data(), value.size()));
  }
  return request;
}

std::string AnswerHead(int status, std::string_view content_type, std::string_view headers) {
  std::string head = absl::StrCat("HTTP/1.1 ", status, " ");
  head.append(ReasonOf(status)).append("\r\nContent-Type: ").append(content_type);
  head.append("\r\n").append(headers).append("Connection: close\r\n");
  return head;
}

}  // namespace eplb
