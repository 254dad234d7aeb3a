// The middleware before handlers of cpp-httplib. All of it is in this header,
// so that it is compiled with the switches that the program's httplib has.
//
//   idempotency::HttplibGuard guard(middleware);
//   server.Post("/payments", guard.Wrap({.scope = "payments",
//                                        .policy = "payment",
//                                        .required = true},
//       [&](const httplib::Request& request, httplib::Response& response,
//           idempotency::Execution* execution) {
//         response.status = 201;
//         response.set_content(
//             wallet.Charge(request.body, execution->downstream_key()),
//             "application/json");
//         return idempotency::HttpEffect::kExecuted;
//       }));
//
// A client that hangs up changes nothing: the handler runs to its end and its
// response is recorded.
//
// What cpp-httplib does before this code sees a request:
//   - It decodes %XX in header values, so that the keys "%41" and "A" are one.
//   - It takes a multipart body apart. Hashed are then the content type
//     "multipart/form-data" and a body of each part's name, file name, content
//     type and content, each after its length as 8 bytes, big-endian; parts
//     of one name in the order in which they were sent, the names sorted. A
//     retry may so have another boundary.
//   - It decompresses a body: hashed is the content.
//   - Old versions drop a header without a value: such a key is missing.
//   - Server::set_payload_max_length() does not bound a body that is sent in
//     chunks: WrapBounded() does.
//
// Fields that the server has put into a response before the guard (CORS, a
// request's own number, default headers) are not recorded, unless the handler
// changes them: a replay has those of its own time. Nor is what httplib makes
// of Range: recorded is 200 and the whole body.
//
// A response with a content provider (streamed, chunked, a file) is recorded
// without its body: a retry is answered 410 response-not-kept.
#ifndef IDEMPOTENCY_CLIENT_HTTP_HTTPLIB_ADAPTER_H_
#define IDEMPOTENCY_CLIENT_HTTP_HTTPLIB_ADAPTER_H_

#include <httplib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "client/execution.h"
#include "client/http/middleware.h"
#include "client/http/problem.h"
#include "client/http/request.h"
#include "client/http/route.h"
#include "client/operation.h"

namespace idempotency {

// Thread-safe. Must outlive the server, as must the middleware.
class HttplibGuard {
 public:
  // As httplib::Server::Handler. `execution`: see HttpHandler.
  using Handler = std::function<HttpEffect(const httplib::Request& request,
                                           httplib::Response& response,
                                           Execution* execution)>;
  using Resolver =
      std::function<Resolution(const httplib::Request&, Execution&)>;

  explicit HttplibGuard(HttpMiddleware& middleware) : middleware_(middleware) {}

  // For Server::Post, Put, Patch and Delete. The handler runs in the server's
  // thread.
  httplib::Server::Handler Wrap(HttpRoute route, Handler handler,
                                Resolver resolve = nullptr) {
    return [this, route = std::move(route), handler = std::move(handler),
            resolve = std::move(resolve)](const httplib::Request& request,
                                          httplib::Response& response) {
      Serve(route, handler, resolve, request, response);
    };
  }

  // The same for bodies of at most `request_bytes_max`, in chunks or not: a
  // longer one is not kept, and refused with 413 request-too-long once it is
  // read to its end; if that does not come within as many bytes again, the
  // connection is closed. The handler finds the body in `request.body`, of a
  // multipart one the parts in `request.files`; `request.params` are those of
  // the query only.
  httplib::Server::HandlerWithContentReader WrapBounded(
      std::size_t request_bytes_max, HttpRoute route, Handler handler,
      Resolver resolve = nullptr) {
    return [this, request_bytes_max, route = std::move(route),
            handler = std::move(handler), resolve = std::move(resolve)](
               const httplib::Request& request, httplib::Response& response,
               const httplib::ContentReader& reader) {
      httplib::Request whole = request;
      bool too_long = false;
      const bool at_end = Read(reader, request_bytes_max, whole, too_long);
      if (too_long) {
        Write(middleware_.Refuse(kRequestTooLong), response);
        if (!at_end) CloseAfter(response);
        return;
      }
      // What cannot be read, httplib has answered.
      if (!at_end) return;
      Serve(route, handler, resolve, whole, response);
    };
  }

  // For a handler that exists and asks for nothing: whatever it answers was
  // executed.
  httplib::Server::Handler Wrap(HttpRoute route,
                                httplib::Server::Handler handler) {
    return Wrap(std::move(route), [handler = std::move(handler)](
                                      const httplib::Request& request,
                                      httplib::Response& response, Execution*) {
      handler(request, response);
      return HttpEffect::kExecuted;
    });
  }

 private:
  void Serve(const HttpRoute& route, const Handler& handler,
             const Resolver& resolve, const httplib::Request& request,
             httplib::Response& response) const {
    HttpRequest seen{.method = request.method,
                     .target = request.target,
                     .body = request.body};
    for (const auto& [name, value] : request.headers) {
      seen.headers.push_back({name, value});
    }
    const std::string parts = TellMultipart(request, seen);
    if (!parts.empty()) seen.body = parts;

    // What the server has put into `response` is in it, whatever is answered.
    httplib::Response own = response;
    HttpResolver resolver;
    if (resolve) {
      resolver = [&](Execution& execution) {
        return resolve(request, execution);
      };
    }
    v1::Response answer = middleware_.Handle(
        seen, route,
        [&](Execution* execution) {
          const HttpEffect effect = handler(request, own, execution);
          return HttpResult{Take(own, response), effect};
        },
        resolver);
    if (answer.body_omitted()) {
      response = std::move(own);
      return;
    }
    Write(std::move(answer), response);
  }

  static bool Read(const httplib::ContentReader& reader, std::size_t bytes_max,
                   httplib::Request& request, bool& too_long) {
    constexpr std::size_t kPartOverhead = 256;
    std::size_t left = bytes_max;
    std::size_t left_to_drop = bytes_max;
    const auto fits = [&](std::size_t size) {
      too_long = too_long || size > left;
      if (!too_long) left -= size;
      return !too_long;
    };
    const auto may_drop = [&](std::size_t size) {
      if (size > left_to_drop) return false;
      left_to_drop -= size;
      return true;
    };
    if (!request.is_multipart_form_data()) {
      return reader([&](const char* bytes, std::size_t size) {
        if (!fits(size)) return may_drop(size);
        request.body.append(bytes, size);
        return true;
      });
    }
    std::string* content = nullptr;
    return reader(
        [&](const httplib::MultipartFormData& part) {
          const std::size_t size = kPartOverhead + part.name.size() +
                                   part.filename.size() +
                                   part.content_type.size();
          if (!fits(size)) return may_drop(size);
          content = &request.files.emplace(part.name, part)->second.content;
          return true;
        },
        [&](const char* bytes, std::size_t size) {
          if (!fits(size)) return may_drop(size);
          content->append(bytes, size);
          return true;
        });
  }

  // Old versions would take what is left of the body for the next request:
  // they close only once an answer has failed. This one does so at its end.
  static void CloseAfter(httplib::Response& response) {
    const std::string type = response.get_header_value("Content-Type");
    response.headers.erase("Content-Type");
    std::string body = std::move(response.body);
    response.body.clear();
    const std::size_t size = body.size();
    response.set_content_provider(
        size, type,
        [body = std::move(body)](std::size_t offset, std::size_t length,
                                 httplib::DataSink& sink) {
          sink.write(body.data() + offset, length);
          return false;
        });
  }

  // Puts in place of a multipart body, which is no longer there, its parts. The
  // result must live as long as `seen`.
  static std::string TellMultipart(const httplib::Request& request,
                                   HttpRequest& seen) {
    std::string parts;
    if (!request.is_multipart_form_data()) return parts;
    const auto add = [&](const std::string& text) {
      for (int shift = 56; shift >= 0; shift -= 8) {
        parts += static_cast<char>(std::uint64_t{text.size()} >> shift);
      }
      parts += text;
    };
    for (const auto& [name, part] : request.files) {
      add(name);
      add(part.filename);
      add(part.content_type);
      add(part.content);
    }
    for (HttpField& field : seen.headers) {
      if (IsSameField(field.name, "content-type")) {
        field.value = "multipart/form-data";
      }
    }
    return parts;
  }

  // The body moves out of `own`; what is produced later stays in it, and is
  // said to be left out. Not taken are fields that the server has put into
  // `before`, and that are still the same: a retry has its own.
  static v1::Response Take(httplib::Response& own,
                           const httplib::Response& before) {
    v1::Response taken;
    taken.set_status_code(own.status == -1 ? 200 : own.status);
    for (const auto& [name, value] : own.headers) {
      if (AreSame(own.headers.equal_range(name),
                  before.headers.equal_range(name))) {
        continue;
      }
      v1::Header* const header = taken.add_headers();
      header->set_name(name);
      header->set_value(value);
    }
    if (own.content_provider_ || IsFile(own)) {
      taken.set_body_omitted(true);
    } else {
      taken.set_body(std::move(own.body));
    }
    return taken;
  }

  template <typename Some, typename Others>
  static bool AreSame(const Some& some, const Others& others) {
    return std::equal(some.first, some.second, others.first, others.second);
  }

  // Versions since 0.18 can answer with a file.
  template <typename Response>
  static bool IsFile(const Response& response) {
    if constexpr (requires { response.file_content_path_.empty(); }) {
      return !response.file_content_path_.empty();
    } else {
      return false;
    }
  }

  static void Write(v1::Response answer, httplib::Response& response) {
    // Which httplib makes of no status, or 206 and a part where Range asks for
    // it.
    response.status = answer.status_code() == 200 ? -1 : answer.status_code();
    for (const v1::Header& header : answer.headers()) {
      response.headers.erase(header.name());
    }
    for (const v1::Header& header : answer.headers()) {
      response.headers.emplace(header.name(), header.value());
    }
    response.body = std::move(*answer.mutable_body());
  }

  HttpMiddleware& middleware_;
};

}  // namespace idempotency

#endif  // IDEMPOTENCY_CLIENT_HTTP_HTTPLIB_ADAPTER_H_
