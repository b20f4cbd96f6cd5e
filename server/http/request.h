// Requests of HTTP/1.0 and HTTP/1.1 without a body, and the heads of their answers, as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/api.h"

namespace eplb {

struct HttpRequest {
  std::string method;     // GET, HEAD or another method that RFC 9110 defines
  std::string path;       // decoded, begins with a slash
  QueryParameters query;  // decoded
  bool is_http_1_0 = false;
  std::vector<std::pair<std::string, std::string>> headers;  // in order, values without blanks

  // Returns the values of header `name`, compared without case, in order.
  std::vector<std::string_view> ValuesOf(std::string_view name) const;
};

// Splits a target such as "/api/v1/jobs?job=a%20b" into request.path and request.query. An escape
// that is no two hexadecimal digits stays as it is; a fragment is dropped.
void SplitTarget(std::string_view target, HttpRequest& request);

// Parses `head`, which ends at its first empty line or where it ends; what follows is ignored.
// Returns nullopt if it is no request of HTTP/1.0 or HTTP/1.1. cost: O(head). threads: safe.
std::optional<HttpRequest> ParseRequest(std::string_view head);

// Returns the status line and the headers of an answer, without the empty line that ends them.
// headers: lines of their own, each with its line end.
std::string AnswerHead(int status, std::string_view content_type, std::string_view headers);

}  // namespace eplb
