package payments.idempotent;

/** Thrown by a handler that did nothing: the key may be used anew. */
public final class NothingHappened extends RuntimeException {
  private static final long serialVersionUID = 1;

  public NothingHappened(String why) {
    super(why);
  }
}
