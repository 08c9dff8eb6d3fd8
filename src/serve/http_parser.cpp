// SPDX-License-Identifier: Apache-2.0
#include "http_parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <utility>

namespace hyperslab::serve {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

std::string text_of(beast::string_view view) { return {view.data(), view.size()}; }

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// True if a line of a header goes on in the next one, which some programs take for another field.
bool is_folded(std::string_view lines) {
  return lines.find("\n ") != std::string_view::npos ||
         lines.find("\n\t") != std::string_view::npos;
}

}  // namespace

RequestParser::RequestParser(const HttpLimits& limits) : limits_(limits) {
  header_limit(limits.header_bytes);
  body_limit(limits.body_bytes);
}

bool RequestParser::expects_continue() const {
  return version_ >= kHttp11 && beast::iequals(expect_, "100-continue");
}

/// Beast asserts that a last chunk has five bytes whenever it goes on with one. Every request with
/// chunks has at least five bytes to come until it is done.
std::size_t RequestParser::read(std::string_view bytes, Error& error) {
  constexpr std::size_t kLastChunk = 5;
  const bool was_header_done = is_header_done_;
  error = http::error::need_more;
  if (bytes.empty() || (was_header_done && chunked() && bytes.size() < kLastChunk)) return 0;
  error = {};
  const std::size_t used = put({bytes.data(), bytes.size()}, error);
  if (!was_header_done && (!error || error == http::error::need_more)) {
    header_bytes_ += used;
    if (header_bytes_ > limits_.header_bytes) {
      refuse_size();
      error = http::error::header_limit;
    } else if (is_folded(bytes.substr(0, used))) {
      refuse(400, "a field of the header goes on in the next line; send each in one line", error);
    }
  }
  if (error && error != http::error::need_more) explain(error);
  return used;
}

/// Gives an error of Beast's its status.
void RequestParser::explain(const Error& error) {
  if (refused_.status != 0) return;
  if (error == http::error::body_limit) {
    refused_ = {413, fmt::format("the body has more than {} bytes; send fewer prompts at a time",
                                 limits_.body_bytes)};
  } else if (error == http::error::header_limit) {
    refuse_size();
  } else {
    refused_ = {400, fmt::format("this is no HTTP/1.1 request: {}", error.message())};
  }
}

void RequestParser::refuse(int status, std::string text, Error& error) {
  if (refused_.status == 0) refused_ = {status, std::move(text)};
  error = http::error::bad_field;
}

void RequestParser::refuse_size() {
  Error ignored;
  refuse(431,
         fmt::format("the request's header, or what its chunks have beside the body, has more than "
                     "{} bytes",
                     limits_.header_bytes),
         ignored);
}

void RequestParser::on_request_impl(http::verb /*verb*/, View method, View target, int version,
                                    Error& /*error*/) {
  request_.method = text_of(method);
  request_.path = text_of(target.substr(0, target.find('?')));
  version_ = static_cast<unsigned>(version);
}

/// Keeps the value of a field that may come once; null: nothing reads this field.
std::string* RequestParser::kept(Field name) {
  switch (name) {
    case Field::authorization: return &request_.authorization;
    case Field::content_length: return &length_;
    case Field::content_type: return &request_.content_type;
    case Field::expect: return &expect_;
    case Field::host: return &request_.host;
    case Field::origin: return &request_.origin;
    case Field::transfer_encoding: return &coding_;
    default: return nullptr;
  }
}

void RequestParser::on_field_impl(Field name, View /*name_text*/, View value, Error& error) {
  if (is_header_done_) return;
  std::string* const value_kept = kept(name);
  if (value_kept == nullptr) return;
  const std::string field = text_of(http::to_string(name));
  if (has_.contains(name)) return refuse(400, field + ": expected once, found twice", error);
  has_.insert(name);
  *value_kept = text_of(value);
}

void RequestParser::on_header_impl(Error& error) {
  is_header_done_ = true;
  const bool is_coded = has_.contains(Field::transfer_encoding);
  const bool is_current = version_ >= kHttp11;
  if (is_coded && !(is_current && beast::iequals(coding_, "chunked"))) {
    refuse(400, "Transfer-Encoding: expected 'chunked' alone, of HTTP/1.1, or none", error);
  } else if (has_.contains(Field::content_length) && !is_number(length_)) {
    refuse(400, "Content-Length: expected one whole number", error);
  } else if (is_current && request_.host.empty()) {
    refuse(400, "Host: expected in a request of HTTP/1.1, found none", error);
  }
}

void RequestParser::on_body_init_impl(const boost::optional<std::uint64_t>& length,
                                      Error& /*error*/) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 16;  // a client only promises its length
  request_.body.reserve(static_cast<std::size_t>(std::min(length.value_or(0), kMost)));
}

std::size_t RequestParser::on_body_impl(View body, Error& /*error*/) {
  request_.body.append(body.data(), body.size());
  return body.size();
}

void RequestParser::on_chunk_header_impl(std::uint64_t /*size*/, View extensions, Error& error) {
  extension_bytes_ += extensions.size();
  if (extension_bytes_ > limits_.header_bytes) error = http::error::header_limit;
}

std::size_t RequestParser::on_chunk_body_impl(std::uint64_t /*remain*/, View body, Error& error) {
  return on_body_impl(body, error);
}

}  // namespace hyperslab::serve
