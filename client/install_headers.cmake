# Run by `cmake --install`, with `headers`, `rewritten_folder` and
# `header_folder` (below the prefix) set by package.cmake.
set(rewritten)
foreach(header IN LISTS headers)
  file(READ "${header}" text)
  string(REPLACE "#include \"client/" "#include \"idempotency/client/" text
         "${text}")
  if(text MATCHES "include[ \t]*[<\"]client/")
    message(FATAL_ERROR "${header}: includes a header of the client otherwise "
      "than by #include \"client/NAME.h\"")
  endif()
  get_filename_component(name "${header}" NAME)
  file(WRITE "${rewritten_folder}/${name}" "${text}")
  list(APPEND rewritten "${rewritten_folder}/${name}")
endforeach()
file(INSTALL FILES ${rewritten}
     DESTINATION "${CMAKE_INSTALL_PREFIX}/${header_folder}")
