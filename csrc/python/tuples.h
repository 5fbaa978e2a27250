// Tuples, and calls of Python functions: by the quick functions of one version, or by those of the stable
// ABI.
#pragma once

#include <Python.h>

namespace zstate {

#if defined(Py_LIMITED_API)

inline Py_ssize_t tuple_size(PyObject* tuple) { return PyTuple_Size(tuple); }
inline PyObject* tuple_item(PyObject* tuple, Py_ssize_t i) { return PyTuple_GetItem(tuple, i); }
// Takes over a reference to `value`, and drops what was there, if anything. Nobody else may have the tuple.
inline void set_tuple_item(PyObject* tuple, Py_ssize_t i, PyObject* value) {
  PyTuple_SetItem(tuple, i, value);
}
// tuple.__new__ for a subclass.
inline PyObject* new_tuple(PyTypeObject* type, PyObject* arguments) {
  return reinterpret_cast<newfunc>(PyType_GetSlot(&PyTuple_Type, Py_tp_new))(type, arguments, nullptr);
}
inline PyObject* call_with(PyObject* function, PyObject* argument) {
  return PyObject_CallFunctionObjArgs(function, argument, nullptr);
}
inline PyObject* call_method(PyObject* object, PyObject* name) {
  return PyObject_CallMethodObjArgs(object, name, nullptr);
}

#else

inline Py_ssize_t tuple_size(PyObject* tuple) { return PyTuple_GET_SIZE(tuple); }
inline PyObject* tuple_item(PyObject* tuple, Py_ssize_t i) { return PyTuple_GET_ITEM(tuple, i); }
inline void set_tuple_item(PyObject* tuple, Py_ssize_t i, PyObject* value) {
  PyObject* old = PyTuple_GET_ITEM(tuple, i);
  PyTuple_SET_ITEM(tuple, i, value);
  Py_XDECREF(old);
}
inline PyObject* new_tuple(PyTypeObject* type, PyObject* arguments) {
  return PyTuple_Type.tp_new(type, arguments, nullptr);
}
inline PyObject* call_with(PyObject* function, PyObject* argument) {
  return PyObject_CallOneArg(function, argument);
}
inline PyObject* call_method(PyObject* object, PyObject* name) {
  return PyObject_CallMethodNoArgs(object, name);
}

#endif

}  // namespace zstate
