// State that several parts of a page see, without more machinery than that.
import { useEffect, useState } from 'preact/hooks';

export class Store<T> {
  private readers = new Set<() => void>();
  constructor(private now: T) {}
  get value(): T {
    return this.now;
  }
  set(value: T) {
    if (value === this.now) return;
    this.now = value;
    this.tell();
  }
  tell() {
    for (const read of [...this.readers]) read();
  }
  follow(read: () => void): () => void {
    this.readers.add(read);
    return () => this.readers.delete(read);
  }
}

// useStore has a component drawn again when the store changes.
export function useStore<T>(store: Store<T>): T {
  const [, draw] = useState(0);
  const drawn = store.value;
  useEffect(() => {
    const again = () => draw((n) => n + 1);
    if (store.value !== drawn) again(); // it changed before it was followed
    return store.follow(again);
  }, [store]);
  return drawn;
}
